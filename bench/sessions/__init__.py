"""Benchmarks of single steps in the life of a session."""
