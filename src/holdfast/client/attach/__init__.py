"""The terminal user interface of `holdfast attach`, on top of the client engine.

`state` decides (pure: events in, effects out), `loop` does the input and output. The engine,
`holdfast.client`, does not import this package.
"""
