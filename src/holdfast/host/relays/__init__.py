"""The host's connections to relays: dialling out, reconnecting, and carrying sealed channels to
`server`.

This room imports `people`, `processes` and `runtime`.
"""
