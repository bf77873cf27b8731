"""Commands that move bytes between this machine and a session. Imports like `faces/cli`."""
