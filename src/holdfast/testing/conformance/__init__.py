"""A conformance suite for clients and hosts: `python -m holdfast.testing.conformance`.

`client` starts a client program and plays the host to it (`scripted_host`, `client_cases`).
`host` plays the client to the host of an installation (`peer`, `host_cases`). `program` speaks
to the client program, `report` prints the results. docs/reference/conformance.md has the protocol
of the client program and the list of cases.
"""
