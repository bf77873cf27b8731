"""An agent on the official ACP library. The test is its model.

The extension method `call` names a method of the client and its arguments; the result goes back to
the test. `spawn` starts a child, `exit` ends the agent.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import acp
from acp.schema import EnvVariable, InitializeResponse, NewSessionResponse, PromptResponse


class Agent:
    """Does as the test says."""

    client: Any
    capabilities: dict[str, Any] | None = None
    count = 0

    def on_connect(self, client: Any) -> None:
        self.client = client

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, **more: Any
    ) -> InitializeResponse:
        if client_capabilities is not None:
            self.capabilities = client_capabilities.model_dump(by_alias=True)
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        self.count += 1
        return NewSessionResponse(session_id=f"s{self.count}")

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> PromptResponse:
        said = acp.update_agent_message_text("".join(one.text for one in prompt))
        await self.client.session_update(session_id=session_id, update=said)
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **more: Any) -> None:
        """Nothing is under way."""

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "facts":
            return {"capabilities": self.capabilities, "pid": os.getpid()}
        if method == "spawn":
            return {"pid": subprocess.Popen(["sleep", "1000"]).pid}
        if method == "print":  # as a careless library does
            os.write(1, params["line"].encode() + b"\n")
            return {}
        if method == "exit":
            asyncio.get_running_loop().call_later(0.1, os._exit, params["code"])
            return {}
        if method == "show":
            content = [acp.tool_terminal_ref(params["terminal"])]
            call = acp.start_tool_call("call1", "make", kind="execute", content=content)
            await self.client.session_update(session_id=params["session"], update=call)
            return {}
        if method == "ask":
            return dict(await self.client.ext_method("hello", params))
        wanted = dict(params["arguments"])
        if "env" in wanted:
            wanted["env"] = [EnvVariable(**one) for one in wanted["env"]]
        try:
            result = await getattr(self.client, params["name"])(**wanted)
        except acp.RequestError as e:
            return {"error": e.to_error_obj()}
        return {} if result is None else dict(result.model_dump(mode="json", by_alias=True))


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Agent()))  # type: ignore[arg-type]
