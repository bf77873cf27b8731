"""Commands for services: programs on the network that use sessions without a client of ours.

This folder imports the command line's helpers and `faces/http`.
"""
