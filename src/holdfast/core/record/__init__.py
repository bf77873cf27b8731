"""The tamper-evident record: signed statements, chained entries, and verification of an export.

This room imports `contract` only.
"""
