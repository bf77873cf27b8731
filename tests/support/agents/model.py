"""A scripted model on loopback, which drives the real programs of coding agents.

It speaks the three protocols of these programs, streaming and not: Anthropic Messages, OpenAI
Responses and OpenAI Chat Completions. The script is a generator: it yields the call of a tool, and
gets the text of the result. It runs in the thread that serves the request, so the script can act
for other operators between two steps. A text instead of a call ends the conversation.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any, ClassVar

Json = dict[str, Any]
Events = list[Json]  # of a stream; `type` is the name of the event


@dataclass(frozen=True)
class Call:
    """Calls a tool. Agents prepend a prefix to our names: the end of the name is compared."""

    tool: str
    arguments: Json


@dataclass(frozen=True)
class Asked:
    """A request of the agent: the offered tools by name, and the results so far."""

    tools: dict[str, Json]
    results: list[str]
    at: float = field(default_factory=time.monotonic)

    def named(self, tool: str) -> str:
        """The tool as this agent calls it; unknown names stay, to ask for a tool not offered."""
        ends = (f"__{tool}", f"_{tool}")
        return next((name for name in self.tools if name.endswith(ends)), tool)

    def ours(self) -> dict[str, Json]:
        return {name: tool for name, tool in self.tools.items() if "holdfast" in name}


Script = Generator[Call | str, str, None]


class Model:
    """Plays one script. Agents repeat requests, so the number of results tells the step."""

    def __init__(self, script: Script) -> None:
        self._script, self._step, self._now = script, -1, next(script)
        self._lock = threading.Lock()
        self.asked: list[Asked] = []  # with tools only: agents also ask for titles
        self.failed: BaseException | None = None
        self.started = 0.0  # when the agent was started
        self.process: int | None = None  # of the agent, which leads a process group
        self.killed = False

    def kill(self) -> None:
        """For the script: kills the agent and its MCP server at once."""
        assert self.process is not None
        self.killed = True
        os.killpg(self.process, signal.SIGKILL)

    def answer(self, asked: Asked) -> Call | str:
        with self._lock:
            if not asked.tools:
                return "a title"
            self.asked.append(asked)
            if len(asked.results) - 1 > self._step and self.failed is None:
                self._step = len(asked.results) - 1
                try:
                    self._now = self._script.send(asked.results[-1])
                except StopIteration:
                    self._now = "over"
                except BaseException as e:  # the test raises it again
                    self.failed, self._now = e, "failed"
            return self._now


# ---------------------------------------------------------------- the protocols


def _texts(content: Any) -> str:
    """The text of a result, which is a string or a list of blocks."""
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content)
    return str(content)


class Messages:
    """Anthropic Messages.

    If our server started late, the agent begins without our tools. Its search for tools waits for
    the server; these calls are no step of the script.
    """

    LATE = "toolu_late"

    @staticmethod
    def read(q: Json) -> Asked:
        blocks = [
            block
            for message in q["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        results = [
            _texts(block.get("content"))
            for block in blocks
            if block.get("type") == "tool_result"
            and not block["tool_use_id"].startswith(Messages.LATE)
        ]
        return Asked({tool["name"]: tool for tool in q.get("tools", ())}, results)

    @staticmethod
    def write(q: Json, asked: Asked, said: Call | str) -> tuple[Json, Events]:
        number = f"toolu_{len(asked.results)}"
        if isinstance(said, Call) and not asked.ours():
            said = Call("ToolSearch", {"query": "select:mcp__holdfast__run"})
            number = f"{Messages.LATE}_{len(q['messages'])}"
        if isinstance(said, Call):
            empty = {
                "type": "tool_use",
                "id": number,
                "name": asked.named(said.tool),
                "input": {},
            }
            block, why = {**empty, "input": said.arguments}, "tool_use"
            text = json.dumps(said.arguments)
            delta = {"type": "input_json_delta", "partial_json": text}
        else:
            empty, why = {"type": "text", "text": ""}, "end_turn"
            block, delta = {**empty, "text": said}, {"type": "text_delta", "text": said}
        message: Json = {
            "id": f"msg_{len(asked.results)}",
            "type": "message",
            "role": "assistant",
            "model": q["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        stop = {"stop_reason": why, "stop_sequence": None}
        events: Events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        return {**message, **stop, "content": [block]}, events


class Responses:
    """OpenAI Responses. The tools of an MCP server are grouped in a namespace."""

    @staticmethod
    def read(q: Json) -> Asked:
        tools: dict[str, Json] = {}
        added = [i["tools"] for i in q["input"] if i.get("type") == "additional_tools"]
        for tool in chain(q.get("tools", ()), *added):
            for one in tool["tools"] if tool["type"] == "namespace" else (tool,):
                name = one.get("name", one["type"])
                if one is not tool:
                    name, one = f"{tool['name']}__{name}", {**one, "namespace": tool["name"]}
                tools[name] = one
        outputs = [_texts(i["output"]) for i in q["input"] if i.get("type", "").endswith("_output")]
        return Asked(tools, outputs)

    @staticmethod
    def write(q: Json, asked: Asked, said: Call | str) -> tuple[Json, Events]:
        number, item = len(asked.results), dict[str, Any]()
        if isinstance(said, Call) and "functions__exec" in asked.tools:
            item = {
                "type": "custom_tool_call",
                "id": f"ctc_{number}",
                "call_id": f"call_{number}",
                "namespace": "functions",
                "name": "exec",
                "input": _script(said),
                "status": "completed",
            }
        elif isinstance(said, Call):
            name = asked.named(said.tool)
            tool = asked.tools.get(name, {})
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": tool.get("name", name),
                "arguments": json.dumps(said.arguments),
                "status": "completed",
            }
            if "namespace" in tool:
                item["namespace"] = tool["namespace"]
        else:
            content = [{"type": "output_text", "text": said, "annotations": []}]
            item = {"type": "message", "id": f"m_{number}", "role": "assistant", "content": content}
        response = {
            "id": f"resp_{number}",
            "object": "response",
            "status": "completed",
            "model": q["model"],
            "output": [item],
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        }
        begun = {**response, "status": "in_progress", "output": []}
        events: Events = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response},
        ]
        return response, events


def _script(call: Call) -> str:
    """The call as JavaScript, for models whose only tool runs code that calls the other tools."""
    return f"""
        const ours = ALL_TOOLS.find(one => one.name === "mcp__holdfast__{call.tool}")
        const result = await tools[ours?.name ?? "{call.tool}"]({json.dumps(call.arguments)})
        text(result.structuredContent ?? result)
    """


class Chat:
    """OpenAI Chat Completions."""

    @staticmethod
    def read(q: Json) -> Asked:
        results = [_texts(m.get("content")) for m in q["messages"] if m["role"] == "tool"]
        tools = {tool["function"]["name"]: tool["function"] for tool in q.get("tools", ())}
        return Asked(tools, results)

    @staticmethod
    def write(q: Json, asked: Asked, said: Call | str) -> tuple[Json, Events]:
        message: Json = {"role": "assistant", "content": said}
        why = "stop"
        if isinstance(said, Call):
            function = {"name": asked.named(said.tool), "arguments": json.dumps(said.arguments)}
            call = {"index": 0, "id": f"call_{len(asked.results)}", "type": "function"}
            message |= {"content": None, "tool_calls": [{**call, "function": function}]}
            why = "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        base = {"id": f"c_{len(asked.results)}", "created": 1, "model": q["model"], "usage": usage}
        whole = {"index": 0, "message": message, "finish_reason": why}
        chunks = (
            {"index": 0, "delta": message, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": why},
        )
        return {**base, "object": "chat.completion", "choices": [whole]}, [
            {**base, "object": "chat.completion.chunk", "choices": [one]} for one in chunks
        ]


PROTOCOLS: dict[str, type[Messages] | type[Responses] | type[Chat]] = {
    "/messages": Messages,
    "/responses": Responses,
    "/chat/completions": Chat,
}


# ---------------------------------------------------------------- the server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ClassVar[Model]

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self._send("application/json", b"")

    def do_GET(self) -> None:
        self._send("application/json", b'{"data": [], "models": []}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        protocol = next((p for end, p in PROTOCOLS.items() if path.endswith(end)), None)
        if protocol is None:  # the number of tokens, statistics
            return self._send("application/json", b'{"input_tokens": 1}')
        q = json.loads(body)
        asked = protocol.read(q)
        whole, events = protocol.write(q, asked, self.model.answer(asked))
        if not q.get("stream"):
            return self._send("application/json", json.dumps(whole).encode())
        lines = [
            (f"event: {one['type']}\n" if "type" in one else "") + f"data: {json.dumps(one)}\n\n"
            for one in events
        ]
        end = "data: [DONE]\n\n" * (protocol is Chat)
        self._send("text/event-stream", ("".join(lines) + end).encode())

    def _send(self, kind: str, body: bytes) -> None:
        if self.model.killed:
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(model: Model, listening: socket.socket) -> Iterator[str]:
    """The address of the model, which answers on this socket."""

    class Handler(_Handler):
        pass

    Handler.model = model
    address = listening.getsockname()
    with ThreadingHTTPServer(address, Handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listening
        thread = threading.Thread(target=server.serve_forever, name="model")
        thread.start()
        try:
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            server.shutdown()
            thread.join()
