"""Commands that bring the ports of a session to this machine."""
