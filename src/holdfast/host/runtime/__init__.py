"""The lowest room of the host: event loop, threads, tasks, client connections, priority, and files
for the next host.

This room does not know sessions, operators or policies. It imports no other room of the host.
"""
