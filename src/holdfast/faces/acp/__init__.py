"""ACP: the terminals of an agent that an editor runs by the Agent Client Protocol (M, P4).

`proxy.py` stands between the editor and the agent and passes messages on. `terminals.py` answers
`terminal/*` from sessions, `tool_calls.py` shows these terminals to the editor, and `messages.py`
reads and writes messages. Imports sdk, core, home, model and the plain text of `faces/mcp`.
"""
