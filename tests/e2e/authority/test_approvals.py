"""approvals, approve, deny: real commands against a host in this process.

The test adds held acts as the door does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.core.policy.policy import Decision
from holdfast.home import keys
from holdfast.home.settings import Settings
from holdfast.host.acts.act_context import situation
from holdfast.host.engine import Engine
from holdfast.host.requests.host import Host
from holdfast.host.runtime.connection import Connection
from holdfast.host.runtime.hot_loop import HotLoop
from holdfast.host.server import Server
from holdfast.host.storage.store import Store
from holdfast.model import signing
from holdfast.model.errors import GateRefused, Held, NotAllowed, Refused, Usage
from holdfast.transport import unix
from tests.support.asker import Asker
from tests.support.installation import DEADLINE_S, Installation, eventually

T = TypeVar("T")
POLICY = (
    'version = 1\nextends = "default"\n[[rule]]\nname = "two end it"\nverdict = "ask"\n'
    'because = "others work in it"\napprovals = 2\n'
    'when = { act = ["end"], session = ["shared"] }\n'
    '[[rule]]\nname = "watched sessions"\nverdict = "ask"\nbecause = "it is watched"\n'
    'when = { act = ["new"], session = ["watched"] }\n'
)


class House:
    """The host, on a thread of its own; clients are processes as everywhere."""

    def __init__(self, base: Path) -> None:
        self.hf = Installation(base)
        self.home = homes.resolve({"HOLDFAST_HOME": str(self.hf.home)})
        homes.prepare(self.home)
        (self.hf.home / "policy.toml").write_text(POLICY)
        self.up()

    def up(self) -> None:
        started: Future[None] = Future()
        self.thread = threading.Thread(target=lambda: self._run(started), daemon=True)
        self.thread.start()
        started.result(DEADLINE_S)

    def _run(self, started: Future[None]) -> None:
        async def serve() -> None:
            self.loop, self.stopping = asyncio.get_running_loop(), asyncio.Event()
            try:
                self.engine = Engine(
                    self.home,
                    Settings.load(self.home),
                    Store(self.home.database),
                )
                self.engine.store.start()
                await self.engine.rediscovery.begin()
                await self.engine.adoptions.all()
                server = Server(
                    self.engine,
                    Host(self.engine, lambda how: self.stopping.set()),
                    unix.listen(self.home.host_socket),
                )
            except BaseException as e:
                started.set_exception(e)
                return
            started.set_result(None)
            await self.stopping.wait()
            server.close("restart", "the host is being replaced")
            await self.engine.close()

        with asyncio.Runner(loop_factory=HotLoop) as runner:
            runner.run(serve())

    def down(self) -> None:
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wants(
        self, who: str, text: str, act: str = "run", session: str = "work", **how: Any
    ) -> Future[Decision]:
        """As the door asks for somebody's act."""
        found = self.engine.find(session)

        async def ask() -> Decision:
            return await self.engine.held_acts.wait_until_allowed(
                Asker(caller, lambda: situation(found, caller, act, text.encode()), **how)
            )

        identity = keys.load(self.home, who)

        class Caller:
            operator, key, kind, closed = who, identity.public, identity.kind, False

        caller = cast(Connection, Caller())
        return self.call(ask())

    def waiting(self, count: int = 1, who: str = "tester") -> list[dict[str, Any]]:
        def listed() -> Any:
            return self.hf.ok("--as", who, "approvals", "--json").json

        eventually(lambda: len(listed()) == count, f"{count} questions")
        found: list[dict[str, Any]] = listed()
        return found

    def close(self) -> None:
        for terminal in self.hf.terminals:
            terminal.close()
        if self.thread.is_alive():
            for session in list(self.engine.sessions.values()):
                self.call(session.end("tester")).result(DEADLINE_S)
            self.loop.call_soon_threadsafe(self.engine.nursery.dismiss)
            self.down()
        self.hf.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    try:
        made.hf.people("ann", "bea")
        made.hf.people("bot", rights="execute", kind="agent")
        made.hf.people("eve", rights="execute")
        made.hf.ok("new", "work", "--contained", "--no-attach")
        made.hf.ok("new", "plain", "--no-attach")
        made.hf.ok("new", "shared", "--contained", "--no-attach")
        yield made
    finally:
        made.close()


def test_p4_a_held_act_is_listed_shown_whole_and_approved_at_a_terminal(house: House) -> None:
    hf, act = house.hf, "rm -rf /logs-of-others # \x1b[2J" + "x" * 3000
    watching = hf.attach("work")
    watching.expect(rb"[$#] ")
    done = house.wants("bot", act)
    [listed] = house.waiting()
    assert (
        listed["operator"],
        listed["name"],
        listed["act"],
        listed["rule"],
        listed["needed"],
        listed["given"],
    ) == ("bot", "work", "run", "what cannot be known needs approval", 1, [])
    assert (
        listed["whole"] is False
        and "\x1b" not in listed["text"]
        and listed["layout"] == "contained"
        and listed["cwd"]
    )
    assert hf.ok("--as", "eve", "approvals", "--json").json == [], (
        "an operator that may not decide does not read it"
    )
    assert [p["id"] for p in hf.ok("--as", "bot", "approvals", "--json").json] == [listed["id"]], (
        "the asker reads it"
    )
    assert (
        hf.ok("approvals", "work").out.count(listed["id"]) == 1
        and "nothing waits" in hf.ok("approvals", "shared").err
    )
    watching.expect("bot waits for approval")
    person = hf.spawn([*map(str, hf.argv(("approve", listed["id"][:6])))], size=(100, 60))
    person.expect(r"once\? \[y/N\] ")
    screen = b"".join(bytes(person.output).split())
    assert (
        screen.count(b"x") >= 3000
        and rb"\u{1b}[2J" in person.output
        and b"bot asks to run on session work" in person.output
    )
    person.send(b"y\r")
    assert person.wait() == 0
    assert done.result(DEADLINE_S).approved == ("tester",)
    watching.expect("tester approved")
    assert watching.leave() == 0
    names = [
        (e["event"], e.get("operator"), e.get("by"))
        for e in map(json.loads, hf.ok("events", "work", "--json").out.splitlines())
        if e["event"].startswith("approval.")
    ]
    assert names == [
        ("approval.asked", "bot", None),
        ("approval.given", "bot", "tester"),
        ("approval.used", "bot", None),
    ]
    assert "/logs-of-others" not in hf.ok("events", "work", "--json").out


def test_p4_a_script_decides_the_act_it_has_seen(house: House) -> None:
    hf = house.hf
    done = house.wants("bot", "rm -rf /other")
    [listed] = house.waiting()
    assert (
        hf.cli("approve", listed["id"]).rc == 2 and hf.cli("approve", listed["id"], "--yes").rc == 2
    )
    assert hf.cli("approve", listed["id"], "--yes", "--binding", "00").rc == 4
    assert (
        hf.cli("--as", "eve", "approve", listed["id"], "--yes", "--binding", listed["binding"]).rc
        == 3
    ), "not even there, without the right"
    refused = hf.cli(
        "--as", "bot", "approve", listed["id"], "--yes", "--binding", listed["binding"], "--json"
    )
    assert refused.rc == 4 and "right" in refused.err
    assert hf.cli("--as", "ann", "deny", listed["id"], "--binding", "00").rc == 4
    denied = hf.ok("--as", "ann", "deny", listed["id"], "--once", "k", "--json").json
    assert denied["answer"] == "deny"
    again = hf.attempt("--as", "ann", "deny", listed["id"], "--once", "k", "--json")
    assert again.rc == 0 and again.json == denied, "a retry gets the answer of the first"
    assert hf.attempt("--as", "ann", "deny", listed["id"]).rc == 3
    with pytest.raises(GateRefused, match="denied by ann"):
        done.result(DEADLINE_S)
    assert hf.cli("approve", listed["id"], "--yes", "--binding", listed["binding"]).rc == 3


def test_p4_two_operators_end_a_session(house: House) -> None:
    hf = house.hf
    done = house.wants("bea", "", "end", "shared")
    [listed] = house.waiting()
    said = ("--yes", "--binding", listed["binding"])
    assert listed["needed"] == 2
    own = hf.cli("--as", "bea", "approve", listed["id"], *said)
    assert own.rc == 4 and "own act" in own.err
    first = hf.ok("--as", "ann", "approve", listed["id"], *said)
    assert "1 more must approve it" in first.out and not done.done()
    assert "already" in hf.cli("--as", "ann", "approve", listed["id"], *said).err
    hf.ok("approve", listed["id"], *said)
    assert done.result(DEADLINE_S).approved == ("ann", "tester")


def test_p4_keys_typed_before_the_question_decide_nothing(house: House) -> None:
    """The question has two pages. What was typed before each of them is dropped."""
    hf, act = house.hf, "rm -rf /typed-ahead; " + "true; " * 300
    done = house.wants("bot", act)
    [listed] = house.waiting()
    argv = [*map(str, hf.argv(("approve", listed["id"])))]
    person = hf.spawn(["sh", "-c", 'echo READY; read -r x; exec "$@"', "sh", *argv])
    person.expect("READY")
    person.send(b"go\r\ry\r\ry\r")
    person.expect("Enter shows more; q leaves it waiting ")
    assert b"/typed-ahead" in person.output and b"once?" not in person.output
    person.send(b"\ry\ry\r")
    person.expect(r"once\? \[y/N\] ")
    assert not done.done()
    person.send(b"n\r")
    assert person.wait() == 1 and not done.done()
    said = ("--yes", "--binding", listed["binding"])
    hf.ok("deny", listed["id"], *said)


def test_p4_in_a_plain_session_a_key_that_its_code_could_read_approves_nothing(
    house: House,
) -> None:
    hf = house.hf
    done = house.wants("bot", "rm -rf /plain", session="plain")
    [listed] = house.waiting()
    said = ("--yes", "--binding", listed["binding"])
    refused = hf.cli("--as", "ann", "approve", listed["id"], *said)
    assert (
        refused.rc == 4
        and "could read the key" in refused.err
        and "holdfast operator lock ann" in refused.err
        and "contained" in refused.err
    )
    terminal = hf.spawn([*map(str, hf.argv(("operator", "lock", "ann")))])
    at = 0
    for _ in range(2):
        at = terminal.expect(r"passphrase of ann: ", at)
        terminal.send(b"open sesame\r")
    assert terminal.wait() == 0 and "now needs its passphrase" in "\n".join(terminal.rows())
    person = hf.spawn(
        [*map(str, hf.argv(("--as", "ann", "approve", listed["id"])))], size=(100, 40)
    )
    person.expect(r"passphrase of ann: ")
    person.send(b"open sesame\r")
    person.expect(r"\[y/N\] ")
    person.send(b"y\r")
    assert person.wait() == 0
    assert done.result(DEADLINE_S).approved == ("ann",)
    unlocked = hf.spawn([*map(str, hf.argv(("operator", "unlock", "ann")))])
    unlocked.expect(r"passphrase of ann: ")
    unlocked.send(b"open sesame\r")
    assert unlocked.wait() == 0 and not keys.load(house.home, "ann").locked


def test_p4_a_new_contained_session_is_approved_like_an_act_in_one(house: House) -> None:
    """The code of the new session cannot read keys, so the key of every approver counts."""
    hf, new = house.hf, ("--as", "bot", "new", "watched", "--no-attach", "--cwd", "/tmp")
    assert hf.cli(*new, "--plain").rc == 4
    [listed] = house.waiting()
    assert listed["layout"] == "plain" and not listed["counts"]
    refused = hf.cli("approve", listed["id"], "--yes", "--binding", listed["binding"])
    assert refused.rc == 4 and "could read the key" in refused.err
    hf.ok("deny", listed["id"], "--yes", "--binding", listed["binding"])
    assert hf.cli(*new).rc == 4
    [listed] = house.waiting()
    assert listed["layout"] == "contained" and listed["counts"], listed
    hf.ok("approve", listed["id"], "--yes", "--binding", listed["binding"])
    made = hf.ok(*new, "--json").json
    assert made["layout"] == "contained"
    hf.ok("end", "watched")


def test_p4_an_approval_from_inside_of_the_session_does_not_count(house: House) -> None:
    hf = house.hf
    done = house.wants("bot", "rm -rf /inside", session="plain", wait_s=60)
    [listed] = house.waiting()
    inside = hf.cli(
        "run",
        "plain",
        "--",
        f"{sys.executable} -m holdfast --as tester approve {listed['id']} --yes --binding "
        f"{listed['binding']}",
    )
    assert inside.rc == 4 and "outside of the session" in inside.out + inside.err, inside
    hf.ok("deny", listed["id"], "--yes", "--binding", listed["binding"])
    with pytest.raises(GateRefused):
        done.result(DEADLINE_S)


def test_s2_a_session_with_a_held_act_waits_for_approval_and_the_log_shows_who_gave_it(
    house: House,
) -> None:
    hf = house.hf

    def state() -> tuple[str, str]:
        [one] = hf.ok("attention", "work", "--json").records
        return one["kind"], one["why"]

    eventually(lambda: state()[0] == "idle", "the prompt")
    done = house.wants("bot", "rm -rf /watched-over")
    [asked] = house.waiting()
    assert state() == ("approval", "the run of bot is held")
    assert "work: waits for approval (the run of bot is held, since" in hf.ok("attention").out
    hf.ok("wait", "work", "--for", "idle", "--timeout", "60")  # the shell is ready all the same
    hf.ok("approve", asked["id"], "--yes", "--binding", asked["binding"])
    assert done.result(DEADLINE_S).approved == ("tester",)
    eventually(lambda: state()[0] == "idle", "the prompt")
    shown = hf.ok("log", "work").out.splitlines()
    [line] = [one for one in shown if f"approve: the run of bot ({asked['id']})" in one]
    assert "tester (cli" in line and "[signature " in line and "VERIFY" not in line


def test_p4_followed(house: House) -> None:
    hf = house.hf
    following = hf.start("approvals", "--follow", "--json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline()) == []
    done = house.wants("bot", "rm -rf /followed")
    [seen] = json.loads(following.stdout.readline())
    hf.ok("approve", seen["id"], "--yes", "--binding", seen["binding"])
    assert [p["state"] for p in json.loads(following.stdout.readline())] == ["approved"]
    assert done.result(DEADLINE_S).approved == ("tester",)
    assert json.loads(following.stdout.readline()) == []
    following.kill()


def test_p4_an_approval_outlives_a_restart_of_the_host(house: House) -> None:
    hf = house.hf
    with pytest.raises(Held) as held:
        house.wants("bot", "rm -rf /later", wait_s=0).result(DEADLINE_S)
    [listed] = house.waiting()
    assert listed["id"] == held.value.facts["id"]
    house.down()
    house.up()
    hf.ok("approve", listed["id"], "--yes", "--binding", listed["binding"])
    house.down()
    house.up()
    assert house.wants("bot", "rm -rf /later", wait_s=0).result(DEADLINE_S).approved == ("tester",)
    with pytest.raises(Held):
        house.wants("bot", "rm -rf /later", wait_s=0).result(DEADLINE_S)
    [again] = house.waiting()
    hf.ok("operator", "revoke", "bot")
    assert house.waiting(0) == [] and again["id"] != listed["id"], (
        "a revoked key's questions are void"
    )


def test_p4_at_the_wire_a_wrong_answer_decides_nothing(house: House) -> None:
    """Wrong messages of a client: another question's id, another operator's signature, nonsense."""
    house.hf.people("imp", rights="execute", kind="agent")
    done = house.wants("imp", "rm -rf /wire", wait_s=60)
    [listed] = house.waiting()
    link = Link(house.home, "ann", autostart=False)
    ann = keys.load(house.home, "ann")
    good = signing.sign(
        ann.secret(),
        "approval",
        bytes.fromhex(link.request("approvals")["approvals"][0]["statement"]),
    ).hex()
    fields = {"id": listed["id"], "binding": listed["binding"], "signature": good}
    for change, error in (
        ({"signature": "zz"}, Usage),
        ({"signature": ""}, Usage),
        ({"signature": "00" * 64}, Usage),
        ({"binding": ""}, Refused),
        ({"binding": listed["binding"][:-1]}, Refused),
    ):
        with pytest.raises(error):
            link.request("approve", **{**fields, **change})
    with pytest.raises(Usage):
        link.request("deny", **fields)
    with pytest.raises(Usage):
        Link(house.home, "bea", autostart=False).request("approve", **fields)
    with pytest.raises(NotAllowed):
        Link(house.home, "eve", autostart=False).request("approve", **fields)
    assert not done.done() and link.request("approve", **fields)["complete"]
    assert done.result(DEADLINE_S).approved == ("ann",)
