"""The asynchronous client: one connection carries many requests, and returns by itself.

`lane` has a connection and its requests; `engine` has the lanes of a client. This room imports
`link`, `signing`, `repeating` and `gone`, and from `attach` the unacknowledged keys and their
signatures. The SDK imports this room.
"""
