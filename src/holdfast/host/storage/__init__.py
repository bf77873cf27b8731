"""Durable state: the SQLite store, the event log, and the record of acts with its journal.

This room stores and orders, and takes no decisions. It imports `runtime` only.
"""
