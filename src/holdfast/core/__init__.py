"""The decisions of the program. No I/O, no clock, no threads: time is an argument."""
