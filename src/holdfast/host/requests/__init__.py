"""The handlers of requests, one function for each operation, and the table that dispatches to them.

Handlers translate between the contract and the other rooms, and may import all of them. Only
`server` and `main` import this room.
"""
