"""Helpers for tests of checkpoints."""
