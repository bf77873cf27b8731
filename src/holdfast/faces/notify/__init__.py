"""`holdfast notify`: tells a person which sessions wait, on all machines of an installation.

`following` finds the waits. `terminal`, `desktop` and `webhook` are the ways to the person.
"""
