"""The program that holds a session: one keeper per session, forked from a warm nursery.

It imports the standard library, `wire` and `model` only.
"""
