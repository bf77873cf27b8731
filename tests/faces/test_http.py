"""The HTTP face without a host: slow clients, the OpenAPI document, and what start-up loads."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from holdfast.core.contract.table import OPERATIONS
from holdfast.faces.http import openapi, routes, server
from holdfast.faces.http.recovery import ADVICE, for_http
from holdfast.model.advice import COMMAND
from holdfast.model.errors import ALL, HoldfastError, Refused
from tests.support.commands.http_client import read_all
from tests.support.installation import DEADLINE_S

ROOT = Path(__file__).parents[2]


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})
        return
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    made = server.listening(("127.0.0.1", 0), False, False)
    running = server.uvicorn_server(hello, None)
    thread = threading.Thread(target=server.run, args=(running, made))
    thread.start()
    yield made.getsockname()
    running.should_exit = True
    thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: y",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHo",
    ],
)
def test_t6_a_slow_client_is_cut_off(slow: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(slow, DEADLINE_S) as made:
        made.sendall(sent)
        told = read_all(made)
    assert told.count(b"hello") == sent.count(b"\r\n\r\n")


def test_t6_beyond_loopback_tls_or_a_flag_is_needed() -> None:
    with pytest.raises(Refused, match="in clear"):
        server.listening(("0.0.0.0", 0), False, False)
    for tls, plain in ((True, False), (False, True)):
        server.listening(("0.0.0.0", 0), tls, plain).close()


def test_t6_the_document_is_valid_and_rendered() -> None:
    made = openapi.document()
    validate(made)
    assert {path.removeprefix("/v1/") for path in made["paths"]} == set(routes.SERVED)
    stored = (ROOT / "docs/reference/openapi.json").read_text()
    assert stored == json.dumps(made, indent=1) + "\n", "run scripts/render_openapi.py"


def test_t6_the_reference_lists_every_operation_that_is_not_served() -> None:
    text = (ROOT / "docs/reference/http.md").read_text()
    rows = text.partition("### Not served\n")[2].partition("\n## ")[0]
    named = [
        name
        for cell in re.findall(r"^\| [a-z ,]+ \| ([^:|]*)", rows, re.MULTILINE)
        for name in re.findall(r"`([a-z_.]+)`", cell)
    ]
    assert sorted(named) == sorted(set(OPERATIONS) - set(routes.SERVED))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_a9_no_error_tells_a_client_of_http_to_type_a_command(kind: type[HoldfastError]) -> None:
    for given in (None, "`holdfast up` starts it", "try --once KEY", "holdfast ls"):
        advice = for_http(kind("it failed", given)).recover
        assert not COMMAND.search(advice), advice
    served = re.findall(r"/v1/([a-z.]+)", " ".join(ADVICE.values()))
    assert served and set(served) <= set(routes.SERVED)


def test_t3_other_commands_do_not_load_the_server() -> None:
    text = (
        "import sys, holdfast.faces.cli.main as m; m.COMMANDS['http'].load(); "
        "print([n for n in ('asyncio', 'starlette', 'uvicorn') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
