"""The terminal emulator: turns raw output into a screen that can be painted, saved and inspected.

This room knows no sessions, viewers or sockets. It imports `runtime` only.
"""
