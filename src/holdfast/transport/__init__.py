"""Frames over a carrier: unix sockets, WebSocket and gRPC.

It moves bytes and decides nothing. It imports `model` only.
"""
