"""Operators, their keys, devices, envelopes and invitations: the rights of each at this moment.

This room answers questions about rights and makes changes of rights durable. It imports `runtime`
and `storage`.
"""
