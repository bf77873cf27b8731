"""Durable state: the SQLite store, the event log, the record of acts with its journal, the spool.

This room stores and orders, and takes no decisions. It imports `runtime` only.
"""
