"""agent: connect a coding agent to a session of its own.

    HOME/agents   {v, agents: [{name, agent, directory, session, tools, files: {path: text}}]}, 0600

The list is for `ls`, `rm` and a repeated `add`; rights are the operator's envelopes. `files` has
the files that `add` wrote, `tools` the names of the further tool sets. `add` repeats what is
missing, so it can be called again at any time.
"""

from __future__ import annotations

import os
import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.operators import lasting
from holdfast.faces.cli.output import clean, put, put_json, table
from holdfast.model import rights
from holdfast.model.errors import Impossible, NotFound, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Final

    from holdfast.client.link import Link
    from holdfast.home import Home
    from holdfast.model.jsontext import Json

WANTED: Final = sorted(rights.EXECUTE - rights.MACHINE_WIDE)
FILE_BYTES: Final = 1 << 20
NAME_CHARS: Final = 40  # of a name that is made here

agent_parser = usage("""
    connect a coding agent: an operator of the kind agent, a contained session for the directory,
    the right to work in that session only, and the agent's own project configuration with the tools
    of `holdfast mcp` and without its own shell. A file that exists is not changed; the text to
    merge is printed. `add` can be repeated. `rm` revokes the operator, and removes the files that
    `add` wrote and that did not change.

    act=[add|ls|rm=ls]  what to do (default: ls)
    which=[AGENT]  with add: claude, codex or opencode; with rm: the name of the operator
    --name NAME  with add: the name of the operator (default: made of agent and directory)
    --session SESSION  with add: a contained session that exists (default: a new one)
    --cwd DIR  with add: the directory of the project (default: this one)
    --tools SETS  with add: further tools for the agent: files, branches, forward, with commas
        (default: as before, else none)
    --expires D  with add: the right ends after 30m, 8h, 7d
    --json
""")


def agent(args: Namespace) -> int:
    if (args.which is None) != (args.act == "ls"):
        needs = {"add": "claude, codex or opencode", "rm": "the NAME", "ls": "no further word"}
        raise Usage(f"agent {args.act} takes {needs[args.act]}", "see `holdfast agent --help`")
    connection = link(args)
    if connection.away is not None:
        raise Usage("agents are connected on the machine where they run", "run this command there")
    if args.act == "ls":
        return _list(connection, args)
    return _add(connection, args) if args.act == "add" else _remove(connection, args)


# ---------------------------------------------------------------- the list of agents


def _known(home: Home) -> list[Json]:
    from holdfast.home import private

    path = f"{home.state}/agents"
    return private.entries(path, FILE_BYTES, "agents", f"move {path} away; add the agents again")


def _keep(home: Home, entries: list[Json]) -> None:
    from holdfast.home import private

    private.keep(f"{home.state}/agents", "agents", entries)


def _list(connection: Link, args: Namespace) -> int:
    found = [
        {"tools": [], **one, "files": sorted(one["files"]), "state": _state(connection, one)}
        for one in _known(connection.home)
    ]
    if args.json:
        put_json(found)
    else:
        rows = [
            (one["name"], one["agent"], one["session"], one["state"], clean(one["directory"]))
            for one in found
        ]
        print(table(("NAME", "AGENT", "SESSION", "STATE", "DIRECTORY"), rows))
    return 0


def _state(connection: Link, one: Json) -> str:
    """Whether the agent can work now: `ready`, or the reason why not."""
    operator = _operator(connection, one["name"])
    if operator is None or operator["revoked"]:
        return "revoked"
    session = _session(connection, one["session"])
    if session is None:
        return "no session"
    return "ready" if _may(operator, session["id"]) else "no rights"


def _operator(connection: Link, name: str) -> Json | None:
    try:
        return connection.request("operator.show", name=name)
    except NotFound:
        return None


def _session(connection: Link, name: str) -> Json | None:
    """The session, if it has not ended."""
    listed = connection.request("ls", all=False)["sessions"]
    living = [one for one in listed if one["state"] != "ended"]  # not a lost one
    return next((one for one in living if name in (one["name"], one["id"])), None)


def _may(operator: Json, session: str) -> list[Json]:
    """The valid envelopes with all wanted rights in this session."""
    return [
        one
        for one in operator["envelopes"]
        if one["state"] == "valid"
        and one["scope"].get("session") == session
        and set(WANTED) <= set(one["rights"])
    ]


# ---------------------------------------------------------------- add


def _add(connection: Link, args: Namespace) -> int:
    from importlib.util import find_spec

    from holdfast.faces.cli.services import agent_files as files
    from holdfast.faces.cli.services.mcp import tool_sets
    from holdfast.home import programs

    if find_spec("mcp") is None:
        raise Impossible("the library for MCP is not installed", "`pip install 'holdfast[mcp]'`")
    if args.which not in files.AGENTS:
        known = ", ".join(files.AGENTS)
        raise Usage(f"the agent {args.which[:40]!a} is not known", f"one of {known}")
    about, home = files.AGENTS[args.which], connection.home
    directory = os.path.realpath(args.cwd or os.getcwd())
    if not os.path.isdir(directory):
        raise Usage(f"{directory} is not a directory")
    entries = _known(home)
    same = [e for e in entries if (e["agent"], e["directory"]) == (args.which, directory)]
    name = args.name or _name(connection, args.which, directory, same)
    if any(e["name"] == name and e not in same for e in entries):
        raise Refused(f"the agent {name} works in another directory", "choose another --name")
    given = _given(connection, args.session)
    session = given["name"] if given else name
    _admit(connection, name)
    environ = {"HOLDFAST_HOME": home.state} if home.explicit else {}
    before: Json = next((e for e in same if e["name"] == name), {"files": {}})
    sets = before.get("tools", ()) if args.tools is None else tool_sets(args.tools)
    more = ("--tools", ",".join(sets)) if sets else ()
    command = programs.module("holdfast", "mcp", "--as", name, "--session", session, *more)
    wanted = files.texts(about, command, environ)
    placed = {path: files.place(directory, path, text) for path, text in wanted.items()}
    facts = {"name": name, "agent": args.which, "directory": directory, "session": session}
    made = {path: text for path, text in wanted.items() if placed[path] == "written"}
    others = [e for e in entries if e["name"] != name]
    _keep(home, [*others, {**facts, "tools": [*sets], "files": before["files"] | made}])
    live = given or _contained(connection, session, directory, placed)
    until = _grant(connection, name, live["id"], args.expires)
    merge = {path: text for path, text in wanted.items() if placed[path] == "merge"}
    shell = list(wanted)[-1]
    switched = {"shell": "on" if shell in merge else "off"}
    return put(
        args,
        {**facts, **switched, "files": placed, "merge": merge},
        "\n".join(
            (
                f"{name} works in the session {session}, {until}; directory {clean(directory)}",
                *(f"{path}: {state}" for path, state in placed.items() if path not in merge),
                *(f"{path} exists; merge this into it:\n\n{merge[path]}" for path in merge),
                f"{about.title}'s own shell IS ON until you merge {shell}"
                if shell in merge
                else f"{about.title}'s own shell is switched off by {shell}{about.until}",
                f"next: start `{args.which}` there; if it asks, trust the directory",
            )
        ),
    )


def _given(connection: Link, session: str | None) -> Json | None:
    """The session that the caller named."""
    if session is None:
        return None
    found = _session(connection, session)
    if found is None or found["layout"] != "contained":
        why = "is not contained" if found else "does not exist"
        raise Refused(f"the session {session} {why}", "omit --session to make one")
    return found


def _name(connection: Link, agent: str, directory: str, same: list[Json]) -> str:
    """The name that this agent has here, or a new one; a revoked name is never used again."""
    from holdfast.model.ids import clean_name

    base = clean_name(f"{agent}-{os.path.basename(directory)}", "-")[:NAME_CHARS]
    number, name = 1, same[0]["name"] if same else base
    while (known := _operator(connection, name)) and (known["revoked"] or not same):
        number += 1
        name, same = f"{base}-{number}", []
    return str(name)


def _admit(connection: Link, name: str) -> None:
    """Make the operator and its key, as far as they do not exist."""
    from holdfast.home import keys
    from holdfast.model import signing

    known = _operator(connection, name)
    if known is not None and known["revoked"]:
        raise Refused(f"{name} was revoked", "choose another --name")
    try:
        key = keys.load(connection.home, name)
    except NotFound:
        if known is not None:
            raise
        key = keys.make(connection.home, name, "agent", time.time(), None)
    kind = key.kind if known is None else known["kind"]
    if kind != "agent":
        raise Refused(f"{name} is an operator of the kind {kind}", "choose another --name")
    if known is None:
        connection.request(
            "operator.add",
            name=name,
            kind=kind,
            key=signing.show(key.public),
            device=os.uname().nodename,
        )


def _contained(connection: Link, name: str, directory: str, placed: dict[str, str]) -> Json:
    """The session of that name, or a new one in which the agent's configuration is read-only.

    A directory of files is read-only as a whole: code inside could rename it otherwise.
    """
    from holdfast.client.environ import for_session

    if live := _session(connection, name):
        if live["layout"] != "contained":
            raise Refused(f"the session {name} is not contained", "choose another --name")
        return live
    configured = sorted({os.path.join(directory, path.partition("/")[0]) for path in placed})
    umask = os.umask(0o077)
    os.umask(umask)
    return connection.request(
        "new",
        name=name,
        argv=[],
        cwd=directory,
        env=for_session({k: v for k, v in os.environ.items() if k}, (), False),
        size=None,
        umask=umask,
        existing=True,
        contained=True,
        agent=None,
        share=[path for path in configured if os.path.exists(path) and not os.path.islink(path)],
    )


def _grant(connection: Link, name: str, session: str, lasts: str | None) -> str:
    """Give the rights in this session unless the agent has them. Returns until when."""
    expires = None if lasts is None else int(time.time() + lasting(lasts))
    operator = connection.request("operator.show", name=name)
    held = [one["scope"].get("expires") for one in _may(operator, session)]
    if not held or (expires is not None and None not in held and max(held) < expires):
        connection.request(
            "grant",
            name=name,
            rights=WANTED,
            session=session,
            expires=expires,
            rate=None,
            commands=None,
        )
        held.append(expires)
    if None in held:
        return "without an end"
    return f"until {time.strftime('%F %H:%M', time.localtime(max(held)))}"


# ---------------------------------------------------------------- rm


def _remove(connection: Link, args: Namespace) -> int:
    from holdfast.faces.cli.services import agent_files as files

    known = _known(connection.home)
    entry = next((one for one in known if one["name"] == args.which), None)
    if entry is None:
        raise NotFound(f"no agent {args.which[:40]!a} was added", "`holdfast agent ls` lists them")
    operator = _operator(connection, entry["name"])
    if operator is not None and not operator["revoked"]:
        connection.request("operator.revoke", name=entry["name"], force=False, grants=False)
    states = {
        path: "removed" if files.remove(entry["directory"], path, text) else "left"
        for path, text in entry["files"].items()
    }
    for path in files.AGENTS[entry["agent"]].files:
        states.setdefault(path, "left")
    _keep(connection.home, [one for one in known if one is not entry])
    lines = [f"{entry['name']} is revoked"]
    for path, state in states.items():
        full = clean(os.path.join(entry["directory"], path))
        lines.append(f"{full}: {state}")
    lines.append(f"the session {entry['session']} goes on: `holdfast end {entry['session']}`")
    return put(args, {"name": entry["name"], "files": states}, "\n".join(lines))
