"""Everything that decides. No I/O, no clock, no threads: time is an argument."""
