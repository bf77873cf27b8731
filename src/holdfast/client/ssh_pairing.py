"""Pair with a machine that `ssh` reaches: an account there may make invitations for itself.

One `ssh` command starts Holdfast there (`up`) and makes a code for another device of that account's
operator. This home joins with the code through the relay on that machine's loopback, again by ssh.
The code goes through ssh's standard output only, and the key of this device stays here.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.core.people import join_code
from holdfast.core.people.join_code import Code
from holdfast.home import machines
from holdfast.model import address
from holdfast.model.address import Ssh
from holdfast.model.errors import Impossible, PeerFault, TimedOut, Unavailable, from_wire
from holdfast.transport import ssh

if TYPE_CHECKING:
    from holdfast.home import Home
    from holdfast.home.machines import Machine
    from holdfast.model.jsontext import Json

ANSWER_S: Final = 60.0  # for a cold start of Holdfast there
ANSWER_BYTES: Final = 1 << 16
CONNECT_S: Final = 10.0
MISSING: Final = 127  # the exit code of a shell that finds no such command


class Offer(NamedTuple):
    """A code for another device of the operator `of`, at the relay `url`."""

    code: Code
    of: str
    url: str  # through ssh
    near: str  # the same relay, as the machine itself calls it


def remote(*commands: tuple[str, ...]) -> str:
    """Return a command for any login shell; `holdfast` may be known to login shells only."""
    both = " && ".join(shlex.join(("holdfast", *one)) for one in commands)
    script = (
        f"if command -v holdfast >/dev/null 2>&1; then {both}; "
        f'else exec "${{SHELL:-sh}}" -lc {shlex.quote(both)}; fi'
    )
    return f"exec sh -c {shlex.quote(script)}"


def known(home: Home, way: Ssh) -> Machine | None:
    """The machine that this home reaches through the same ssh already."""
    for machine in machines.listing(home):
        ways = [address.ssh(one.url) for one in machine.ways]
        if any(one and (one.destination, one.port) == (way.destination, way.port) for one in ways):
            return machine
    return None


def offered(way: Ssh) -> Offer:
    """Ask the machine for a code. Raises Unavailable with ssh's or the machine's reason."""
    asked = remote(("up", "--detach", "--json"), ("invite", "--device", "--no-wait", "--json"))
    try:
        done = subprocess.run(
            [*ssh.command(way, CONNECT_S, "--", way.destination), asked],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            start_new_session=True,
        )
    except FileNotFoundError as e:
        raise Impossible(ssh.NO_SSH, "install OpenSSH's client") from e
    except subprocess.TimeoutExpired as e:
        raise TimedOut(f"ssh to {way.host} does not answer", "try again") from e
    answers = _answers(done.stdout[:ANSWER_BYTES])
    if done.returncode:
        errors = [one for one in _answers(done.stderr[-ANSWER_BYTES:]) if "error" in one]
        if errors and isinstance(errors[0]["error"], dict):
            raise from_wire(errors[0]["error"])
        if done.returncode == MISSING:
            raise Unavailable(
                f"there is no `holdfast` on {way.host}",
                "install it there, so that a login shell finds it",
            )
        raise ssh.failed(way, done.stderr)
    return _offer(way, answers)


def _offer(way: Ssh, answers: list[Json]) -> Offer:
    try:
        up, invited = answers
        if not up["relay"]:
            raise Unavailable(
                f"{way.host} has no relay on its loopback",
                "set `relay.start = true` in its configuration",
            )
        near, (code, _) = str(up["relay"]["url"]), join_code.read(str(invited["code"]))
        port = address.host_and_port(near)[1]
        return Offer(code, str(invited["of"]), way.url(port), near)
    except (ValueError, KeyError, TypeError) as e:
        raise PeerFault(f"{way.host} did not answer as Holdfast does") from e


def _answers(text: bytes) -> list[Json]:
    """The JSON objects among the lines; a login shell may print other lines."""
    found = []
    for line in text.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found
