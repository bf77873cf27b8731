"""The client engine: connects to a host, signs acts, starts a host, joins machines through relays.

The command line, the SDKs and the other faces use this package. `client.attach` is the terminal
user interface on top; no other module of this package imports `client.attach`.
"""
