"""Rights as values: envelopes and scopes, devices, invitations, join codes, recovery and rates.

This room imports no other room of `core`.
"""
