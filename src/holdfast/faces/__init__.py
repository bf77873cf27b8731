"""Thin faces over the client."""
