"""The asynchronous client: one connection carries many requests, and returns by itself.

`lane` has a connection and its requests; `engine` has the lanes of a client. This room imports
`link`, which connects and signs; the SDK imports this room.
"""
