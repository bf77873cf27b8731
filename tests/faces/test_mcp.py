"""Discovery of the MCP server: the same answers with and without the library, in any order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import holdfast
from holdfast.core.session.inheritance import names_a_secret
from holdfast.faces.mcp import front, recovery, text, tools
from holdfast.faces.mcp.front import Front, answer
from holdfast.model.errors import Busy, NotListening
from holdfast.sdk.recovery import ADVICE as OF_SDK
from holdfast.sdk.recovery import for_programs

Json = dict[str, Any]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = {"jsonrpc": "2.0", "id": "a", "method": "tools/list"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
DISCOVER = {
    "jsonrpc": "2.0",
    "id": "probe",
    "method": "server/discover",
    "params": {"_meta": ENVELOPE},
}
NEWER_LIST = {**LIST, "params": {"_meta": ENVELOPE}}
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}


class Library:
    """A server that answers every request with its line."""

    def __init__(self, write: Callable[[str], None], ready: threading.Event) -> None:
        ready.wait()
        self.write, self.fed = write, list[str | None]()

    def feed(self, line: str | None) -> None:
        self.fed.append(line)
        if line is not None and "id" in (message := json.loads(line)):
            self.write(json.dumps({"id": message["id"], "by": "library"}))

    def join(self) -> None:
        pass


def test_discovery_is_answered_before_the_library_is_there() -> None:
    ready, written, made = threading.Event(), list[Any](), list[Library]()

    def load(write: Callable[[str], None]) -> Library:
        made.append(Library(write, ready))
        return made[-1]

    served = Front("9", load, lambda line: written.append(json.loads(line)))
    call = {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "sessions"}}

    def lines() -> Any:
        for message in (INITIALIZE, INITIALIZED, LIST, PING, call):
            yield json.dumps(message) + "\n"
        assert [one["id"] for one in written] == [0, "a", 7], "without the library"
        assert [tool["name"] for tool in written[1]["result"]["tools"]][:2] == ["run", "read"]
        ready.set()
        while len(written) < 4:
            yield "\n"
        yield json.dumps({**PING, "id": 0}) + "\n"

    served.serve(lines())
    assert [one.get("by") for one in written] == [None, None, None, "library", "library"]
    assert made[0].fed[-1] is None
    assert [json.loads(line or "{}").get("id") for line in made[0].fed] == [
        0,
        None,
        "a",
        7,
        9,
        0,
        None,
    ]


def test_the_rest_waits_for_the_library() -> None:
    modern = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    messages: list[Any] = [
        INITIALIZED,
        {**LIST, "params": {"cursor": "2"}},
        {**LIST, "params": modern},
        {**LIST, "method": "tools/call"},
        [],
        None,
        {"id": 1},
        {"id": 1, "method": 5, "params": 5},
    ]
    for message in messages:
        assert answer(message, "9") is None, message


def replies(program: str, messages: Sequence[Json], count: int) -> dict[Any, Json]:
    """The answers of a real server process, by id."""
    pytest.importorskip("mcp", reason="the library of the extra [mcp] is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("".join(json.dumps(one) + "\n" for one in messages))
        server.stdin.flush()
        found = [json.loads(server.stdout.readline()) for _ in range(count)]
        server.stdin.close()
    return {one["id"]: one for one in found}


SERVE = "from holdfast.faces.cli.main import run; run(['mcp', '--as', 'nobody-yet'])"


@pytest.mark.parametrize(
    "messages", [(INITIALIZE, INITIALIZED, LIST, PING), (DISCOVER, NEWER_LIST)], ids=["old", "new"]
)
def test_m_the_library_gives_the_same_answers(messages: Sequence[Json]) -> None:
    """By a real server process, whose front is switched off."""
    without = "from holdfast.faces.mcp import front; front.answer = lambda *_: None; "
    requests = [one for one in messages if "id" in one]
    found = replies(without + SERVE, messages, len(requests))
    for request in requests:
        offered = found[request["id"]]["result"].get("capabilities", {})
        offered.pop("experimental", None)  # empty, in some releases of the library
        assert found[request["id"]] == answer(request, holdfast.__version__)


def test_m_a_client_that_falls_back_to_the_handshake_is_served() -> None:
    """It sent a request of the newer era, waited in vain, and began again."""
    more = {"jsonrpc": "2.0", "id": 5, "method": "resources/list"}
    found = replies(SERVE, (DISCOVER, INITIALIZE, INITIALIZED, LIST, more), 4)
    assert found.keys() == {"probe", 0, "a", 5}
    assert all("result" in one for one in found.values()), found


def test_every_tool_is_described_by_a_schema() -> None:
    for tool in tools.TOOLS:
        schema = tool["inputSchema"]
        assert set(schema.get("required", ())) <= set(schema["properties"])
        assert all("type" in one or "enum" in one for one in schema["properties"].values())
    assert len(json.dumps(tools.TOOLS)) < 5_500, "every agent pays for this in each conversation"
    assert tuple(sorted(front.VERSIONS)) == front.VERSIONS


def test_tool_sets_are_small_and_tell_what_they_take() -> None:
    sizes = {name: len(json.dumps(found)) for name, found in tools.SETS.items()}
    assert sizes["files"] < 2_500 and sizes["forward"] < 600, sizes
    names = [tool["name"] for tool in tools.chosen(tuple(tools.SETS))]
    assert len({*names}) == len(names)
    listed = tools.chosen(("forward",))
    found = answer(LIST, "9", listed)
    assert found is not None and found["result"]["tools"] == list(listed)


def test_errors_advise_an_agent_to_use_its_tools() -> None:
    assert recovery.ADVICE.keys() == OF_SDK.keys(), "no advice of the Python API is left"
    busy = recovery.for_agents(for_programs(Busy("a program runs")))
    assert "stop" in busy.recover and "session." not in busy.recover
    named = recovery.for_agents(for_programs(NotListening("no", "start the server there")))
    assert named.recover == "start the server there", "what the host knows better stays"


def test_output_keeps_its_beginning_and_its_end() -> None:
    output = text.Output()
    total = 0
    while total < 4 * text.TAIL_BYTES:
        line = b"%08d\r\n" % total
        output.add(100 + total, line)
        total += len(line)
    shown = output.news(True)
    assert shown.startswith("00000000\n") and f"{total - 10:08d}\n" in shown[-20:]
    assert (output.start, output.end) == (100, 100 + total)
    assert output.lost and f"[{output.lost} bytes left out" in shown


@pytest.mark.parametrize("cut", range(1, 18))
def test_news_gives_each_byte_once_and_cuts_no_sequence(cut: int) -> None:
    whole, output = "a\x1b[31mé\r\n€\x1b]0;t\x07b".encode(), text.Output()
    output.add(0, whole[:cut])
    first = output.news(False)
    output.add(cut, whole[cut:])
    assert first + output.news(True) == "aé\n€b"
    assert output.news(True) == ""
    output.again()
    assert output.news(True) == "aé\n€b"


def test_news_counts_what_it_leaves_out() -> None:
    output = text.Output()
    output.add(0, b"x" * 10)
    assert output.news(False) == "x" * 10
    output.add(10, b"z" * (8 * text.TAIL_BYTES))
    shown = output.news(False)
    left_out = 8 * text.TAIL_BYTES - shown.count("z")
    assert f"[{left_out} bytes left out" in shown and output.news(False) == ""


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 5000])
def test_a_cut_text_has_its_ends(size: int) -> None:
    whole = "".join(chr(0x4E00 + n % 500) for n in range(size))
    shown = text.cut(whole, 1000)
    assert shown == whole if size <= 1000 else shown.startswith(whole[:250])
    assert shown.endswith(whole[-min(size, 750) :])


def test_values_of_variables_that_name_secrets_are_hidden() -> None:
    found = text.secrets({"API_TOKEN": "abcdefgh", "TOKEN": "short", "PATH": "/usr/bin:/bin"})
    assert found == {"abcdefgh": "API_TOKEN"} and names_a_secret("API_TOKEN")
    assert text.hidden("x abcdefgh y", found) == "x [API_TOKEN] y"
