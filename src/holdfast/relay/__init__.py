"""The program that routes sealed frames between hosts and clients.

It understands outer frames only: the import rules keep away all code that could open a sealed
message. It imports `core`, `wire`, `transport`, `home` and `model`.
"""
