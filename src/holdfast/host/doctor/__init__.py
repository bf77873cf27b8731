"""`holdfast doctor`: which features this machine supports, tried for real in child processes.

The doctor runs without a host. It imports `policy`, to check the shell parser, and `runtime`.
"""
