"""Processes as the kernel shows them: /proc, cgroups, process events, sockets, and stopping or
continuing them.

This room reads processes and acts on them, but does not know which operator caused a process. It
imports `runtime` only.
"""
