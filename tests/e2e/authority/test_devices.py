"""One operator, several devices: one name, one set of rights; every act names its device.

T3, T4, A5, P1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.home.keys import Identity
from holdfast.model import signing
from holdfast.model.errors import NotAllowed, Refused, TurnHeld
from holdfast.wire import frames
from tests.support.commands.results import the_error
from tests.support.commands.through_relay import connect
from tests.support.installation import SOURCE, Installation, eventually, installation
from tests.support.peers.hostile_client import Lines, Wire
from tests.support.simulation.crooked_carrier import Crooked

ROOT = SOURCE.parent


class Device(Wire):
    """A client on the machine itself with a key that is in no file of its home."""

    def __init__(self, hf: Installation, operator: str, client: int, private: bytes) -> None:
        Link.__init__(self, homes.resolve(hf.env), operator, "test", autostart=False)
        self.client, self.sequence = client, time.monotonic_ns()
        self.identity = Identity(operator, "human", signing.public(private), 0, private, False, "")
        self.connect()


def private() -> tuple[bytes, str]:
    made = signing.generate()
    return made, signing.show(signing.public(made))


def add(hf: Installation, operator: str, name: str, *more: str) -> bytes:
    """Another device of that operator, added from the first one."""
    made, key = private()
    assert (
        hf.ok("--as", operator, "device", "add", name, "--key", key, *more, "--json").json["name"]
        == name
    )
    return made


def devices(hf: Installation, operator: str, by: str = "tester") -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in hf.ok("--as", by, "device", "ls", operator, "--json").json}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        made.people("bob")
        yield made


# ---------------------------------------------------------------- one operator


def test_t4_two_devices_are_one_operator_and_each_act_says_which_it_was(hf: Installation) -> None:
    hf.people("ann")
    room = Lines(hf, "both")
    laptop, phone = Wire(hf, "ann", 61), Device(hf, "ann", 62, key := add(hf, "ann", "phone"))
    laptop.attach("both")
    phone.attach("both")
    phone.say(frames.input_(1, b"by the phone\n", frames.INPUT_ACK))
    phone.taken(1)
    laptop.request("send", session="both", text="by the laptop\n")
    room.become("by the phone", "by the laptop")

    [line] = [words for words in hf.ok("who", "both").out.splitlines() if words.startswith("ann")]
    mine = next(name for name in devices(hf, "ann") if name != "phone")
    assert f"test on {mine}, test on phone" in line and f"turn ({mine})" in line
    who = hf.ok("who", "both", "--json").json
    assert [(one["operator"], one["device"]) for one in who["operators"]] == [
        ("ann", mine),
        ("ann", "phone"),
    ] and who["turn"]["device"] == mine
    acts = {
        e["device"]: e
        for e in hf.ok("log", "both", "--json").records
        if e["actor"] == "ann" and e["kind"] in ("keys", "line") and e["phase"] != "outcome"
    }
    assert (
        set(acts) == {mine, "phone"}
        and acts["phone"]["key"] == signing.show(signing.public(key)) != acts[mine]["key"]
    )
    assert f"ann (test on {mine}) line:" in hf.ok("log", "both").out
    listed = devices(hf, "ann", by="ann")
    assert (
        listed["phone"]["connected"][0] | {"since": 0}
        == {"way": "local", "modality": "test", "since": 0}
        and not listed["phone"]["this"]
        and listed[mine]["this"]
    )
    assert listed["phone"]["added_by"] == "ann" and listed["phone"]["added_from"] == mine
    assert [row.split()[:2] for row in hf.ok("--as", "ann", "device").out.splitlines()[2:]] == [
        ["*", mine],
        ["phone", "here"],
    ]
    laptop.close()
    phone.close()
    eventually(lambda: not devices(hf, "ann")["phone"]["connected"], "the phone is gone")
    assert (
        devices(hf, "ann")["phone"]["way"] == "local"
        and time.time() - devices(hf, "ann")["phone"]["seen"] < 3600
    )


def test_a5_a_device_has_the_rights_of_its_operator_and_no_more(hf: Installation) -> None:
    hf.new("narrow", "--", "cat")
    hf.new("other", "--", "cat")
    hf.people("nina", rights="")
    hf.ok("grant", "nina", "--rights", "observe,input", "--session", "narrow", "--rate", "3/1000")
    one, two = Wire(hf, "nina", 63), Device(hf, "nina", 64, add(hf, "nina", "second"))
    assert two.request("get", session="narrow")["name"] == "narrow"
    with pytest.raises(NotAllowed):
        two.request("get", session="other")
    with pytest.raises(NotAllowed, match="`end`"):
        two.request("end", session="narrow")
    for who in (one, two, one):
        who.request("send", session="narrow", text="x\n")
    for who in (one, two):  # a second device is no second rate
        with pytest.raises(NotAllowed, match="as often as it may"):
            who.request("send", session="narrow", text="y\n")
    hf.ok("grant", "nina", "--rights", "observe", "--session", "other")  # on both devices
    assert all(who.request("get", session="other")["name"] == "other" for who in (one, two))
    assert hf.ok("operator", "show", "nina").out.count("  may ") == 2, (
        "each grant once, however many devices"
    )
    one.close()
    two.close()


def test_a5_rights_handed_on_with_an_operators_own_key_are_for_all_devices(
    hf: Installation,
) -> None:
    hf.new("handed", "--", "cat")
    hf.people("olga", rights="")
    second = Device(hf, "olga", 65, add(hf, "olga", "second"))
    hf.ok("--as", "bob", "grant", "olga", "--rights", "observe", "--session", "handed", "--own-key")
    assert (
        second.request("get", session="handed")["name"] == "handed"
        and hf.attempt("--as", "olga", "view", "handed").rc == 0
    )
    second.close()


def test_t4_adding_a_device_to_another_operator_needs_all_of_its_rights(hf: Installation) -> None:
    hf.people("pat")
    hf.people("quinn", rights="read")
    hf.people("manager", rights="manage")
    for name in ("quinn", "manager"):
        error = the_error(
            hf.attempt(
                "--as", name, "device", "add", "--of", "pat", "--key", private()[1], "--json"
            ),
            4,
        )
        assert error["name"] == "not_allowed"
        assert the_error(
            hf.attempt("--as", name, "device", "add", "--of", "pat", "--no-wait", "--json"), 4
        )
    assert list(devices(hf, "pat")) == [next(iter(devices(hf, "pat")))]
    assert the_error(hf.attempt("--as", "quinn", "device", "ls", "pat", "--json"), 4)
    made, key = private()
    assert (
        hf.ok("device", "add", "gift", "--of", "quinn", "--key", key, "--json").json["operator"]
        == "quinn"
    )
    gift = Device(hf, "quinn", 66, made)
    with pytest.raises(NotAllowed):
        gift.request("operator.add", name="x", kind="human", key=private()[1])
    gift.close()


def test_t4_a_key_is_one_device_of_one_operator(hf: Installation) -> None:
    hf.people("rose")
    made, key = private()
    hf.ok("--as", "rose", "device", "add", "tablet", "--key", key)
    assert (
        "the device tablet of rose already"
        in the_error(
            hf.attempt("--as", "rose", "device", "add", "more", "--key", key, "--json"), 4
        )["message"]
    )
    assert (
        "belongs to rose"
        in the_error(hf.attempt("--as", "bob", "device", "add", "--key", key, "--json"), 4)[
            "message"
        ]
    )
    assert (
        the_error(
            hf.attempt("--as", "rose", "device", "add", "tablet", "--key", private()[1], "--json"),
            4,
        )["message"]
        == "rose has or had a device named tablet"
    )
    for bad in ("-x", "a b", "0123456789ab", "x" * 65):
        assert hf.attempt("--as", "rose", "device", "rename", "tablet", "--json", "--", bad).rc == 2
    assert (
        hf.ok("--as", "rose", "device", "rename", "tablet", "slate", "--json").json["was"]
        == "tablet"
    )
    assert (
        the_error(hf.attempt("--as", "rose", "device", "rename", "tablet", "x", "--json"), 3)[
            "message"
        ]
        == "rose has no device 'tablet'"
    )
    assert the_error(hf.attempt("--as", "bob", "device", "rename", "slate", "x", "--json"), 3)
    own = next(name for name in devices(hf, "rose") if name != "slate")
    assert hf.attempt("--as", "rose", "device", "rename", "slate", own, "--json").rc == 4
    hf.ok("--as", "rose", "device", "revoke", key)
    assert hf.attempt("--as", "rose", "device", "rename", "slate", "x", "--json").rc == 4
    assert (
        hf.attempt("--as", "rose", "device", "add", "slate", "--key", private()[1], "--json").rc
        == 4
    ), "its name stays its own"
    assert (
        "was revoked"
        in the_error(hf.attempt("--as", "rose", "device", "add", "--key", key, "--json"), 4)[
            "message"
        ]
    )
    with pytest.raises(NotAllowed, match="the device slate of rose was revoked"):
        Device(hf, "rose", 67, made)
    recorded = [
        json.loads(e["content"])
        for e in hf.ok("log", "machine", "--json", "--limit", "1000").records
        if e["actor"] == "rose"
        and e["phase"] != "outcome"
        and e["verdict"] == "allow"
        and e["content"]
    ]
    assert [(one["op"], one.get("device"), one.get("to")) for one in recorded] == [
        ("device.add", "tablet", None),
        ("device.rename", "tablet", "slate"),
        ("device.revoke", key, None),
    ]


# ---------------------------------------------------------------- revoked


def test_a5_a_device_that_is_revoked_loses_the_turn_and_the_others_go_on(hf: Installation) -> None:
    hf.people("sam")
    room = Lines(hf, "taken")
    laptop, phone, bob = (
        Wire(hf, "sam", 68),
        Device(hf, "sam", 69, add(hf, "sam", "phone")),
        Wire(hf, "bob", 70),
    )
    for one in (laptop, phone, bob):
        one.attach("taken")
    phone.say(frames.input_(1, b"before\n", frames.INPUT_ACK))
    phone.taken(1)
    with pytest.raises(TurnHeld):
        bob.request("send", session="taken", text="too early\n")
    assert bob.request("turn", session="taken", act="request")["asked"] is True
    said = hf.ok("--as", "sam", "device", "revoke", "phone")
    assert "is revoked" in said.out
    bye = phone.dropped()
    assert (
        isinstance(bye, NotAllowed)
        and "the device phone of sam was revoked" in bye.message
        and "holdfast device add" in bye.recover
    )
    assert bob.until("turn", how="request")["holder"] == "bob", (
        "the name passes as that of an operator that left"
    )
    bob.request("send", session="taken", text="bob\n")
    bob.request("turn", session="taken", act="release")
    laptop.request("send", session="taken", text="the laptop goes on\n")
    room.become("before", "bob", "the laptop goes on")
    assert [one["operator"] for one in hf.ok("who", "taken", "--json").json["operators"]] == [
        "sam",
        "bob",
    ]
    laptop.close()
    bob.close()


def test_a5_the_turn_of_another_device_is_not_touched(hf: Installation) -> None:
    hf.people("tess")
    Lines(hf, "untouched")
    add(hf, "tess", "phone")
    laptop, bob = Wire(hf, "tess", 71), Wire(hf, "bob", 72)
    laptop.request("send", session="untouched", text="mine\n")
    hf.ok("--as", "tess", "device", "revoke", "phone")
    with pytest.raises(TurnHeld, match="tess"):
        bob.request("send", session="untouched", text="not yet\n")
    laptop.close()
    bob.close()


def test_a5_a_device_that_is_revoked_while_it_is_away_and_in_the_middle_of_a_run(
    hf: Installation,
) -> None:
    hf.people("uma")
    hf.ready("away", "--", "bash")
    key = add(hf, "uma", "phone")
    phone = Device(hf, "uma", 73, key)
    phone.request("send", session="away", text="true\n")
    phone.close()
    assert hf.get("away")["turn"]["holder"] == "uma"
    hf.ok("--as", "uma", "device", "revoke", "phone")
    assert hf.get("away")["turn"] is None
    with pytest.raises(NotAllowed, match="the device phone of uma was revoked"):
        Device(hf, "uma", 74, key)
    gate = hf.gate("running")
    tablet = add(hf, "uma", "tablet")
    runs = Device(hf, "uma", 75, tablet)
    place = runs.acting.learn("away", runs.request("place", session="away"))
    fields: dict[str, Any] = {"session": "away", "text": f"cat {gate}", "seq": runs.next_sequence()}
    runs.acting.sign("run", fields, place)
    runs.say(frames.request(7, {"op": "run", **fields}))
    hf.under_way("run", 1)
    eventually(
        lambda: (hf.get("away")["turn"] or {}).get("holder") == "uma", "the run has the turn"
    )
    hf.ok("--as", "uma", "device", "revoke", "tablet")
    assert isinstance(runs.dropped(), NotAllowed)
    assert hf.get("away")["turn"] is None
    gate.open()


def test_a5_waiting_keys_of_a_revoked_device_are_not_typed(hf: Installation) -> None:
    """The keys of the device wait for an unfinished line; then the device is revoked."""
    hf.people("vera")
    room = Lines(hf, "pending")
    phone, bob = Device(hf, "vera", 76, add(hf, "vera", "phone")), Wire(hf, "bob", 77)
    bob.request("send", session="pending", text="half ")
    bob.request("turn", session="pending", act="release")
    phone.attach("pending")
    phone.say(frames.input_(1, b"of the phone\n", frames.INPUT_ACK))
    hf.ok("--as", "vera", "device", "revoke", "phone")
    phone.dropped()
    bob.request("send", session="pending", text="a line\n")
    room.become("half a line")
    bob.close()


def test_p2_signatures_of_a_revoked_device_stay_valid(hf: Installation, tmp_path: Path) -> None:
    hf.people("will")
    Lines(hf, "history")
    phone = Device(hf, "will", 78, add(hf, "will", "phone"))
    phone.request("send", session="history", text="signed\n")
    hf.ok("--as", "will", "device", "revoke", "phone")
    phone.dropped()
    hf.ok("--as", "will", "send", "history", "after", "--enter")
    for whose in ("history", "machine"):
        file = tmp_path / whose
        hf.ok("log", "export", whose, str(file))
        found = hf.ok("log", "verify", str(file), "--json").json
        assert found["ok"] is True, found
        alone = subprocess.run(
            [sys.executable, str(ROOT / "docs/reference/verify_record.py"), str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert alone.returncode == 0, alone
    [line] = [
        e
        for e in hf.ok("log", "history", "--json").records
        if e["kind"] == "line" and e["phase"] == "intent" and e["device"] == "phone"
    ]
    assert line["attestation"] == "actor-signed"


def test_a5_after_a_theft_keys_admitted_by_the_device_go_with_it(hf: Installation) -> None:
    hf.people("xena")
    stolen = Device(hf, "xena", 79, add(hf, "xena", "phone"))
    made, key = private()
    stolen.request("device.add", device="backdoor", key=key)
    thief = Device(hf, "xena", 80, made)
    said = hf.ok("--as", "xena", "device", "revoke", "phone", "--json").json
    assert said["had_added"] == [{"name": "backdoor", "revoked": False}] and thief.request("ping")
    said = hf.ok("--as", "xena", "device", "revoke", "phone", "--grants", "--json").json
    assert isinstance(thief.dropped(), NotAllowed) and devices(hf, "xena")["backdoor"]["revoked"]


def test_s7_the_last_device_of_the_last_admin_is_not_revoked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with installation(tmp_path_factory.mktemp("last")) as hf:
        hf.ok("up", "--detach")
        [only] = devices(hf, "tester")
        error = the_error(hf.attempt("device", "revoke", only, "--json"), 4)
        assert (
            "the last who can let others in" in error["message"] and "--force" in error["recover"]
        )
        add(hf, "tester", "phone")
        hf.ok("device", "revoke", "phone")
        assert hf.attempt("device", "revoke", only, "--json").rc == 4
        second = add(hf, "tester", "second")
        said = hf.ok(
            "device", "revoke", only, "--json"
        )  # the used device: it gets its answer, and is gone
        assert said.json["this"] is True and said.json["left"] == 1
        assert the_error(hf.attempt("ls", "--json"), 4)["message"].startswith(
            f"the device {only} of tester was revoked"
        )
        left = Device(hf, "tester", 81, second)
        with pytest.raises(Refused, match="last"):
            left.request("device.revoke", device="second")
        left.close()
        hf.ok(
            "operator", "recover", "rescue"
        )  # the way back, for the user of the machine's account
        hf.env["HOLDFAST_AS"] = "rescue"
        assert hf.ok("device", "ls", "tester").rc == 0


# ---------------------------------------------------------------- through a relay


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, relay: Crooked) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("there"), "[turn]\nidle_s = 600\n") as made:
        made.ready("work", "--", "bash")
        made.people("ann")
        connect(made, relay)
        yield made


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, there: Installation) -> Iterator[Installation]:
    """Ann's phone."""
    with installation(tmp_path_factory.mktemp("here")) as made:
        invited = there.ok("--as", "ann", "device", "add", "phone", "--no-wait", "--json").records[
            0
        ]
        assert (invited["of"], invited["device"], invited["rights"]) == ("ann", "phone", [])
        assert (
            "another device of ann"
            in the_error(made.attempt("join", invited["url"], "--as", "other", "--json"), 4)[
                "message"
            ]
        )
        joined = made.ok("join", invited["url"], "--as", "ann", "--json").json
        assert (joined["name"], joined["device"], joined["of"], "manage" in joined["rights"]) == (
            "ann",
            "phone",
            "ann",
            True,
        )
        made.ok("machines", "rename", joined["as"], "box")
        yield made


def test_t3_the_same_operator_from_here_and_from_elsewhere(
    here: Installation, there: Installation
) -> None:
    [machine] = here.ok("machines", "--json").json
    assert (machine["operator"], machine["device"], machine["presence"]) == (
        "ann",
        "phone",
        "online",
    )
    local, away = there.attach("--as", "ann", "attach", "work"), here.attach("box/work")
    for terminal in (local, away):
        terminal.see("$")
    away.send("echo from the ph''one\r")
    local.see("from the phone")
    local.send("echo from the lap''top\r")
    away.see("from the laptop")
    who = there.ok("who", "work", "--json").json
    assert sorted(one["device"] for one in who["operators"]) == sorted(devices(there, "ann")) and {
        one["operator"] for one in who["operators"]
    } == {"ann"}
    assert [way["way"] for way in devices(there, "ann")["phone"]["connected"]] == ["relay"]
    away.leave()
    local.leave()
    assert devices(there, "ann")["phone"]["way"] == "relay"


def test_t4_a_device_adds_another_from_elsewhere_by_a_typed_code(
    here: Installation,
    there: Installation,
    relay: Crooked,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = here.ok("device", "add", "box/", "--no-wait", "--json").records[0]
    with installation(tmp_path_factory.mktemp("third")) as third:
        joined = third.ok(
            "join",
            made["code"],
            "--relay",
            relay.url,
            "--as",
            "ann",
            "--device",
            "tablet",
            "--json",
        ).json
        assert (
            joined["device"] == "tablet"
            and devices(there, "ann")["tablet"]["added_from"] == "phone"
        )
        assert third.ok("run", f"{joined['as']}/work", "--", "echo fine").out == "fine\n"
        there.ok("turn", "work", "release", "--as", "ann")
        assert (
            "the device tablet of ann already"
            in the_error(
                third.attempt(
                    "join",
                    there.ok("--as", "ann", "invite", "--device", "--no-wait", "--json").records[0][
                        "url"
                    ],
                    "--as",
                    "ann",
                    "--json",
                ),
                4,
            )["message"]
        )
        here.ok("device", "revoke", "box/tablet")
        assert third.attempt("ls", f"{joined['as']}/", "--json").rc in (4, 5)


def test_a5_revoked_while_it_is_attached_from_elsewhere(
    here: Installation, there: Installation
) -> None:
    local, away = there.attach("--as", "ann", "attach", "work"), here.attach("box/work")
    for terminal in (local, away):
        terminal.see("$")
    away.send("echo ha''lf")
    local.see("echo ha''lf")
    assert there.ok("who", "work", "--json").json["turn"]["device"] == "phone"
    there.ok("--as", "ann", "device", "revoke", "phone")
    assert away.wait() == 4
    assert (
        "the device phone of ann was revoked" in (said := away.output.decode("utf-8", "replace"))
        and "holdfast join" in said
    )
    assert there.get("work")["turn"] is None
    local.send("\x15echo the laptop goes on\r")
    local.see("the laptop goes on")
    local.leave()
    the_error(here.attempt("ls", "box/", "--json"), 4)
    code = there.ok("--as", "ann", "device", "add", "--no-wait", "--json").records[0]["url"]
    assert (
        "was revoked"
        in the_error(here.attempt("join", code, "--as", "ann", "--json"), 4)["message"]
    )
    joined = here.ok("join", code, "--as", "ann", "--new-key", "--device", "phone", "--json").json
    assert joined["device"] == "phone-2" and joined["as"] == "box"
    there.ok("turn", "work", "release", "--as", "ann")
    assert here.ok("run", "box/work", "--", "echo back").out == "back\n"


def test_t4_an_invitation_of_a_device_ends_with_the_device_that_made_it(
    here: Installation, there: Installation
) -> None:
    made = here.ok("device", "add", "box/", "--no-wait", "--json").records[0]
    there.ok("--as", "ann", "device", "revoke", "phone-2")
    [one] = [one for one in there.ok("invite", "ls", "--json").json if one["id"] == made["id"]]
    assert one["state"] == "void" and "revoked" in one["why"]


def test_t4_the_operator_that_adds_a_device_sees_it_join(
    here: Installation, there: Installation, relay: Crooked
) -> None:
    there.people("zed", rights="read")
    adding = there.spawn(
        [sys.executable, "-m", "holdfast", "--as", "zed", "device", "add", "watch", "--confirm"],
        size=(120, 60),
    )
    adding.expect(r"holdfast join ([0-9A-Z-]{14}) --relay")
    found = re.search(rb"holdfast join ([0-9A-Z-]{14}) --relay", adding.output)
    assert found is not None
    coming = here.start("join", found[1].decode(), "--relay", relay.url, "--as", "zed")
    adding.expect(r"zed \(human\) asks to add a device")
    adding.expect(r"admit\? \[y/n\]")  # keys typed before that are dropped
    adding.send("y\r")
    assert adding.wait() == 0 and b"watch is now a device of zed" in adding.output
    out, err = coming.communicate()
    assert (
        coming.returncode == 0 and b"this is watch, a device of zed," in out and b"with read" in out
    ), (out, err)
    assert (
        here.attempt("view", "box/work", "--as", "zed").rc == 0
        and here.attempt("send", "box/work", "x", "--as", "zed").rc == 4
    )
