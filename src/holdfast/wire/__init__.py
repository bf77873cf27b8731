"""Bytes <-> model. Programs meet only here."""
