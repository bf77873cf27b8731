"""Holdfast keeps a live execution alive and shared."""

__version__ = "0.1.0"
