"""SQLite files of the host and of the relay: opened with the same care, written by one thread.

The package knows no table and no program. It imports the model and apsw.
"""
