"""The nouns of the system: ids, rights, keys, errors and limits.

No I/O, no clock, no threads. It imports no other package of Holdfast.
"""
