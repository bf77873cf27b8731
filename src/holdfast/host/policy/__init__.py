"""The policy that judges acts: the shell parser, the built-in rules, plug-in policies and Cedar.

This package turns a request into a decision within a time limit and has no side effects. It imports
only `runtime`.
"""
