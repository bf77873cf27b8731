"""MCP: the tools with which an AI agent works in a session (M, P4, G2).

`tools.py` describes the tools, `front.py` answers discovery before the MCP library is loaded,
`server.py` serves stdio and HTTP with that library, `calls.py` has one function per tool, and
`acts.py` follows each command of the agent to its end. Imports sdk, core, home and model.
"""
