"""A live session: keeper link, lane (the order of acts), turn, shell, viewers and the end.

This room serializes the acts that reach the keeper, and decides nothing about rights or policy. It
imports `runtime`, `processes`, `terminal`, `shell` and `storage`.
"""
