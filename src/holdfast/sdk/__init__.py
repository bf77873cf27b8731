"""The Python API: `holdfast.connect()` and what it gives.

`client` connects and finds sessions, `session` acts on one, `operators` manages rights. `results`
and `observed` have the values returned. `holdfast.sync` is the same without `await`, rendered from
the asynchronous classes. This package imports `client`, `core`, `home` and `model`; programs import
only `holdfast` and `holdfast.sync`.
"""
