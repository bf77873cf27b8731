"""Listening ports of sessions, brought to clients: the handlers and the open forwards."""
