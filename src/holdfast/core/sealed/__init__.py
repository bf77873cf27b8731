"""Sealed channels through a relay: handshake, credit, routes, pairing with a code, and backoff.

This room imports `people`, and `wire`, because the channel is a state machine over the wire format.
"""
