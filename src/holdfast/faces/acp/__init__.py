"""ACP: an agent that an editor runs by the Agent Client Protocol, and its terminals (M, P4).

`proxy.py` stands between the editor and the agent and passes messages on; `peer.py` is one side of
it. `beside.py` starts the agent's program as a child, `inside.py` as a command in a session.
`terminals.py` answers `terminal/*` from sessions, `tool_calls.py` shows these terminals to the
editor, and `messages.py` reads and writes messages. Imports sdk, client, core, home, model and the
plain text of `faces/mcp`.
"""
