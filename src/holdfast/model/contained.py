"""The words of the section [contain] and of the flags of `new`."""

from __future__ import annotations

SSH_AGENT = "ssh-agent"
DOORS = (SSH_AGENT, "dbus", "docker", "display", "gpu")
NETWORKS = HOST, OWN, NONE = ("host", "own", "none")  # each is stricter than the one before
AUTO = "auto"  # in the configuration: own where this machine can connect it, else host
PORTS_MAX = 32  # published by one session
LIST, READ_ONLY = TOOL_FILE_MODES = ("list", "read-only")
SHARES_MAX = 32


def port(text: str) -> int:
    """The number of a port; 0 if the text is none."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if number < 1 << 16 else 0
