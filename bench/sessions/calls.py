"""What a call of an agent costs beside the same call of a program on the SDK.

    python -m bench.sessions.calls [--calls N] [--agents N]

    call      one `run` of `true` in one contained session: by the SDK, by MCP over stdio, by MCP
              over streamable HTTP; the three take turns, call by call
    answer    from the start of `holdfast mcp` to the answer to `initialize`, and to the first `run`
    crowd     that many agents at once, each with its own server over stdio, key and contained
              session; the memory of one server, and of the host before and with them

Ratios of one run are comparable; absolute times depend on the other work of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

import holdfast
from bench import processes
from bench.report import machine, number
from tests.support.installation import Installation, installation

AGENT = "bot"
Act = Callable[[], Awaitable[object]]


def words(operator: str, session: str, *more: str) -> list[str]:
    return ["-m", "holdfast", "mcp", "--as", operator, "--session", session, *more]


@contextlib.asynccontextmanager
async def by_stdio(house: Installation, operator: str, session: str) -> AsyncIterator[Act]:
    program = StdioServerParameters(
        command=sys.executable, args=words(operator, session), env=house.env
    )
    async with stdio_client(program) as streams, ClientSession(*streams) as client:
        await client.initialize()
        yield lambda: _run(client)


async def _run(client: ClientSession) -> None:
    body = (await client.call_tool("run", {"command": "true"})).structured_content or {}
    while body.get("state") in ("running", "needs_input"):  # the machine is busy
        again = {"ref": body["ref"], "wait_s": 20}
        body = (await client.call_tool("read", again)).structured_content or {}
    assert (body.get("state"), body.get("exit_code")) == ("done", 0), body


def token_of(file: str) -> str:
    return Path(file).read_text().strip()


@contextlib.asynccontextmanager
async def by_http(house: Installation, session: str) -> AsyncIterator[Act]:
    server = subprocess.Popen(
        [sys.executable, *words(AGENT, session, "--listen", "127.0.0.1:0", "--json")],
        env=house.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        url, token = facts["url"], token_of(facts["token_file"])
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            streamable_http_client(url, http_client=http) as streams,
            ClientSession(streams[0], streams[1]) as client,
        ):
            await client.initialize()
            yield lambda: _run(client)
    finally:
        server.terminate()
        server.wait()


async def side_by_side(house: Installation, count: int) -> dict[str, list[float]]:
    """Milliseconds of each call."""
    async with (
        holdfast.connect(home=str(house.home), operator=AGENT) as client,
        by_stdio(house, AGENT, "s0") as stdio,
        by_http(house, "s0") as http,
    ):
        session = await client.sessions.get("s0")
        ways: dict[str, Act] = {
            "SDK": lambda: session.run("true"),
            "MCP, stdio": stdio,
            "MCP, HTTP": http,
        }
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number_ in range(count + 1):
            for way, act in ways.items():
                begin = time.perf_counter()
                await act()
                if number_:  # the first call loads the library
                    took[way].append((time.perf_counter() - begin) * 1e3)
        return took


async def first_answers(house: Installation, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds from the start of a server to `initialize`, and to its first result."""
    answers, results = list[float](), list[float]()
    for _ in range(count):
        begin = time.perf_counter()
        async with by_stdio(house, AGENT, "s0") as act:
            answers.append((time.perf_counter() - begin) * 1e3)
            await act()
            results.append((time.perf_counter() - begin) * 1e3)
    return answers, results


async def crowd(house: Installation, agents: int, count: int) -> tuple[list[float], float, float]:
    """Milliseconds of each call, calls per second of all, and KiB of one server (PSS)."""
    took = list[float]()

    async def work(act: Act) -> None:
        for _ in range(count):
            begin = time.perf_counter()
            await act()
            took.append((time.perf_counter() - begin) * 1e3)

    async with contextlib.AsyncExitStack() as stack:
        acts = [
            await stack.enter_async_context(by_stdio(house, f"bot{n}", f"s{n}"))
            for n in range(agents)
        ]
        for act in acts:
            await act()
        begin = time.perf_counter()
        await asyncio.gather(*map(work, acts))
        rate = agents * count / (time.perf_counter() - begin)
        servers = [pid for pid in house.processes() if "mcp" in processes.argv(pid)[1:4]]
        return took, rate, processes.pss_kb(servers) / max(1, len(servers))


def row(name: str, values: list[float], base: float) -> str:
    middle, high = statistics.median(values), statistics.quantiles(values, n=100)[-1]
    return f"| {name} | {number(middle)} | {number(high)} | {number(middle / base)} |"


def prepare(house: Installation, agents: int) -> None:
    names = [AGENT, *(f"bot{n}" for n in range(agents))]
    house.people(*names, rights="execute", kind="agent")
    for n in range(agents):
        place = house.user / f"s{n}"
        place.mkdir()
        house.ready(f"s{n}", "--contained", "--cwd", str(place))


def main() -> int:
    p = argparse.ArgumentParser(prog="bench.sessions.calls")
    p.add_argument("--calls", type=int, default=100)
    p.add_argument("--agents", type=int, default=20)
    args = p.parse_args()
    before = machine()
    print(f"{before['system']}, {before['cpus']} processors, load {before['load']} at the start.\n")
    with (
        tempfile.TemporaryDirectory(prefix="hbench", dir="/tmp") as top,
        installation(Path(top)) as house,
    ):
        prepare(house, args.agents)
        took = asyncio.run(side_by_side(house, args.calls))
        base = statistics.median(took["SDK"])
        print("| one call | p50, ms | p99, ms | x SDK |\n|---|---:|---:|---:|")
        print("\n".join(row(way, values, base) for way, values in took.items()), end="\n\n")
        answers, results = asyncio.run(first_answers(house, 10))
        answer, result = statistics.median(answers), statistics.median(results)
        bare = [_bare() for _ in range(10)]
        print(f"first answer {number(answer)} ms, first result {number(result)} ms,", end=" ")
        print(f"bare Python {number(statistics.median(bare))} ms (medians of 10)\n", flush=True)
        host = processes.pss_kb([house.host_pid])
        many, rate, server = asyncio.run(crowd(house, args.agents, args.calls // 4))
        print(f"| {args.agents} agents at once | p50, ms | p99, ms | x SDK alone |")
        print("|---|---:|---:|---:|")
        print(row("MCP, stdio", many, base))
        after = processes.pss_kb([house.host_pid])
        print(f"\n{number(rate)} calls/s together; one server {number(server)} KiB;", end=" ")
        print(f"host {host} KiB before, {after} KiB after (PSS)")
    return 0


def _bare() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begin) * 1e3


if __name__ == "__main__":
    sys.exit(main())
