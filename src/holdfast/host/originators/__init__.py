"""The authors of the state that an act uses: process lineage, file writers, shell state, timers.

This package observes and attributes, and never refuses an act. It imports `session`, `processes`,
`shell`, `storage` and `runtime`.
"""
