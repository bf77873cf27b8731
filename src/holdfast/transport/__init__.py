"""Frames over a carrier. Today: unix sockets."""
