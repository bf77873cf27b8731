"""The command line: a module per group of commands, found through the table in `main`.

Only the module of the given command is imported. A module must import little at the top.
"""
