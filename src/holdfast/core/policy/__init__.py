"""Decisions of the gate: rules, conditions, approvals and the judgement of execs.

This room imports `shellcode`, `originators` and `people`.
"""
