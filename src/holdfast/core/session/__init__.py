"""The life of a session as pure state machines: lifecycle, turn, marks, attention, halt and graph.

This room imports `originators` only.
"""
