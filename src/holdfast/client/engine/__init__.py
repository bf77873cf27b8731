"""The asynchronous client: a connection carries many requests, and is restored after a loss.

`lane` has a connection with requests; `engine` has the lanes of a client. This room imports
`link`, `signing`, `repeating` and `gone`, and from `attach` the unacknowledged keys and their
signatures. The SDK imports this room.
"""
