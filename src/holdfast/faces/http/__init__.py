"""HTTP and JSON for services: the operations of the contract, as routes of one service operator.

`routes` and `openapi` are made from the operation table; `tokens` has the bearer tokens. `app` and
`server` are the only modules that load the libraries of the extra `http`.
"""
