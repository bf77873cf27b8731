"""The courier: one process for each errand of a host at another machine.

The host starts `python -m holdfast.courier` with an errand on its standard input, and reads lines
of JSON: `progress`, then `done` or `error`. The process is a client of the other machine, through
the relay and inside the sealed channel. So code of the host needs no code of a client.
"""
