"""The contract between clients and the host: every operation with request, reply and rules.

`table` names the operations, the other modules hold the requests and replies by subject, and
`codec` turns messages into the JSON of the wire and back. This room imports no other room of
`core`.
"""
