"""The ground that the host's other rooms stand on: the event loop, threads, tasks, client
connections, priority and files for the next host.

This room does not know sessions, operators or policies, and imports no other room of the host.
"""
