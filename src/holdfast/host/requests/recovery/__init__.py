"""Requests that save sessions to disk and bring them back."""
