"""Analysis of a shell command from its text: words, syntax tree, wrappers and known effects.

`programs.toml` holds the knowledge about programs. This room imports no other room of `core`.
"""
