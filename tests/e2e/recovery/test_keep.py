"""The changes of branches are shown, kept and discarded (R5).

The last test runs this file again as an ordinary user. All tests need CRIU (scripts/criu).
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import Usage
from tests.support.installation import Installation, eventually, installation
from tests.support.keeper import gone
from tests.support.ordinary_user import cases, passes_as_ordinary_user
from tests.support.recovery.checkpoint import criu

ROOT = os.getuid() == 0


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def branched(hf: Installation, name: str, count: int = 1) -> Path:
    """A contained session with a directory of its own, and branches of it."""
    place = hf.user / name
    (place / "deep").mkdir(parents=True)
    for one in ("file", "same", "gone", "moves", "deep/a", "deep/b"):
        (place / one).write_text(f"{one}\n" * 3)
    (place / "link").symlink_to("file")
    hf.ready(name, "--contained", "--cwd", str(place))
    hf.ok("fork", name, "-n", f"{count}")
    return place


def says(hf: Installation, name: str, command: str) -> str:
    return hf.ok("run", name, "--", command).out


CHANGES = (
    "echo new > file; rm gone; mv moves moved; chmod 700 same; mkdir -p made/inside; "
    "printf 'a\\0b' > made/binary; rm -r deep; echo flat > deep; ln -sfn made link; "
    "truncate -s 300K made/large; touch made/inside/empty"
)


def diff(hf: Installation, name: str, *args: str, cwd: Path | None = None) -> dict[str, Any]:
    said: dict[str, Any] = hf.ok("diff", name, *args, "--json", cwd=cwd).json
    return said


# ---------------------------------------------------------------- diff


def test_r5_diff_shows_files_with_content(hf: Installation) -> None:
    place = branched(hf, "shows")
    assert diff(hf, "shows-1")["files"] == []
    says(hf, "shows-1", CHANGES)
    said = diff(hf, "shows-1")
    found = {Path(one["path"]).relative_to(place).as_posix(): one for one in said["files"]}
    assert {path: one["what"] for path, one in found.items()} == {
        "file": "changed",
        "gone": "removed",
        "moved": "renamed",
        "same": "mode",
        "made": "added",
        "made/inside": "added",
        "made/inside/empty": "added",
        "made/binary": "added",
        "made/large": "added",
        "deep": "kind",
        "deep/a": "removed",
        "deep/b": "removed",
        "link": "changed",
    }
    assert "-file\n-file\n-file\n+new\n" in found["file"]["text"]
    assert found["moved"]["source"] == str(place / "moves") and not found["moved"]["text"]
    assert found["made/binary"]["why"] == "binary"
    assert found["made/large"]["why"].startswith("larger than")
    assert found["link"]["before"]["link"] == "file" and found["link"]["after"]["link"] == "made"
    assert found["same"]["after"]["mode"] == 0o700
    only = diff(hf, "shows-1", str(place / "made"))["files"]
    assert len(only) == 5 and only[0]["path"] == str(place / "made")
    text = hf.ok("diff", "shows-1").out
    assert "+new" in text and f"{place}/moves -> {place}/moved" in text
    short = hf.ok("diff", "shows-1", "--stat").out
    assert "+new" not in short and f"changed  {place}/file" in short
    assert hf.cli("diff", "shows").rc == 3


def test_r5_attributes_and_access_control_lists_are_shown_and_kept(hf: Installation) -> None:
    """Programs of the branch set them through its layer."""
    place = branched(hf, "attributes")
    everybody = 2**32 - 1
    rules = [(1, 6, everybody), (2, 4, os.getuid()), *((n, 4, everybody) for n in (4, 16, 32))]
    allowed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *rule) for rule in rules)
    try:
        os.setxattr(place / "same", "system.posix_acl_access", allowed)
        os.removexattr(place / "same", "system.posix_acl_access")
    except OSError as e:
        pytest.skip(f"this file system has no access control lists: {e.strerror}")
    code = (
        "import os; os.setxattr('file', 'user.color', b'blue'); "
        f"os.setxattr('same', 'system.posix_acl_access', bytes.fromhex('{allowed.hex()}'))"
    )
    says(hf, "attributes-1", f'/usr/bin/python3 -c "{code}"')
    said = {Path(one["path"]).name: one for one in diff(hf, "attributes-1")["files"]}
    assert {name: one["what"] for name, one in said.items()} == {
        "file": "attributes",
        "same": "attributes",
    }
    assert said["file"]["text"] == "+user.color: 'blue'\n"
    assert "+system.posix_acl_access: user::rw-,user:" in said["same"]["text"]
    hf.ok("keep", "attributes-1")
    assert os.getxattr(place / "file", "user.color") == b"blue"
    assert os.getxattr(place / "same", "system.posix_acl_access") == allowed
    hf.ok("discard", "attributes-1")


def test_r5_diff_shows_processes_ports_and_private_files(hf: Installation) -> None:
    branched(hf, "live")
    code = "import socket; s = socket.create_server(('127.0.0.1', 8123)); print(1); input()"
    says(hf, "live-1", "echo x > ~/private; sleep 54321 & true")
    hf.quick("send", "live-1", f'/usr/bin/python3 -uc "{code}"', "--enter")
    hf.wait("live-1", "port:8123")
    said = diff(hf, "live-1")
    assert {"sleep", "python3"} <= {one["name"] for one in said["began"]}
    assert said["opened"] == [8123] and said["closed"] == [] and said["ended"] == []
    assert said["private"] >= 1 and said["files"] == []
    every = [Path(one["path"]).name for one in diff(hf, "live-1", "--every")["files"]]
    assert "private" in every
    hf.ok("end", "live-1")
    eventually(lambda: hf.get("live-1")["state"] == "ended" or None, "the branch to end")
    after = diff(hf, "live-1")
    assert after["state"] == "ended" and after["exit_code"] is not None
    assert "bash" in {one["name"] for one in after["ended"]}


# ---------------------------------------------------------------- keep


def test_r5_keep_commits_the_files_and_discards_the_other_branches(hf: Installation) -> None:
    place = branched(hf, "keeps", 3)
    second = hf.get("keeps-2")["id"]
    says(hf, "keeps-1", CHANGES)
    says(hf, "keeps-2", "echo other > file; echo x > other")
    (place / "parent").write_text("the parent's own")
    checked = hf.ok("keep", "keeps-1", "--check", "--json").json
    assert not checked["done"] and checked["steps"] > 10 and checked["conflicts"] == []
    assert (place / "file").read_text() == "file\n" * 3
    said = hf.ok("keep", "keeps-1", "--json").json
    assert said["done"] and said["steps"] == checked["steps"] and not said["resumed"]
    assert {one["name"] for one in said["discarded"]} == {"keeps-2", "keeps-3"}
    assert (place / "file").read_text() == "new\n" and not (place / "gone").exists()
    assert (place / "moved").read_text() == "moves\n" * 3 and not (place / "moves").exists()
    assert (place / "same").stat().st_mode & 0o777 == 0o700
    assert (place / "made/binary").read_bytes() == b"a\0b"
    assert (place / "made/large").stat().st_size == 300 << 10
    assert (place / "deep").read_text() == "flat\n" and os.readlink(place / "link") == "made"
    assert (place / "parent").read_text() == "the parent's own"
    assert not list(place.rglob(".holdfast-keep*"))
    assert says(hf, "keeps", "cat file") == "new\n"
    assert hf.get(second)["state"] == "ended"
    [left] = hf.ok("branches", "keeps", "--json").json
    assert left["name"] == "keeps-1" and left["kept"]
    assert says(hf, "keeps-1", "cat file") == "new\n", "the kept branch goes on"
    kinds = [one["kind"] for one in hf.ok("log", "keeps-1", "--json").records]
    assert "keep" in kinds
    again = hf.ok("keep", "keeps-1", "--json").json
    assert again["done"] and again["steps"] == 0
    hf.ok("discard", "keeps-1")
    assert (place / "file").read_text() == "new\n"


@pytest.fixture
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation that forgets ended sessions at once."""
    criu()
    with installation(
        tmp_path_factory.mktemp("forgets"), "[session]\nkeep_ended_s = 0.1\n"
    ) as made:
        yield made


def test_r5_an_ended_branch_is_listed_and_can_be_kept_or_discarded(
    forgetful: Installation,
) -> None:
    """However long ago it ended."""
    fresh = forgetful
    place = branched(fresh, "ends", 2)
    says(fresh, "ends-1", "echo new > file")
    for code, name in ((3, "ends-1"), (0, "ends-2")):
        fresh.quick("send", name, f"exit {code}", "--enter")
        fresh.cli("wait", name, "exit")
    fresh.new("other", "--plain", "--", "true")

    def forgotten() -> bool | None:
        return "other" not in {one["name"] for one in fresh.ls("--all")} or None

    eventually(forgotten, "an ended session to be forgotten")
    listed = fresh.ok("branches", "ends", "--json").json
    assert [(one["state"], one["exit_code"]) for one in listed] == [("ended", 3), ("ended", 0)]
    assert "ended with 3" in fresh.ok("branches").out
    refused = fresh.cli("forget", "ends-1")
    assert refused.rc == 4 and "holdfast discard ends-1" in refused.err
    assert len(diff(fresh, "ends-1")["files"]) == 1
    said = fresh.ok("keep", "ends-1", "--json").json
    assert said["done"] and [one["name"] for one in said["discarded"]] == ["ends-2"]
    assert (place / "file").read_text() == "new\n"
    fresh.ok("discard", "ends-1")
    assert fresh.ok("branches", "--json").json == []


def test_r5_keep_shows_conflicts_and_writes_nothing(hf: Installation) -> None:
    place = branched(hf, "clash", 2)
    says(hf, "clash-1", "echo branch > file; echo branch > same; rm gone; echo x > fresh")
    says(hf, "clash", "echo parent > file; echo parent > gone; echo parent > fresh")
    refused = hf.cli("keep", "clash-1")
    assert refused.rc == 4 and "nothing was written" in refused.out
    for name in ("file", "gone", "fresh"):
        assert f"conflict: {place}/{name}" in refused.out
    assert (place / "same").read_text() == "same\n" * 3
    assert len(hf.ok("branches", "clash", "--json").json) == 2, "no branch is discarded"
    args = ("--take", f"{place}/file", "--leave", f"{place}/gone", "--leave", f"{place}/fresh")
    said = hf.ok("keep", "clash-1", "--json", "--others", *args).json
    assert said["done"] and sorted(said["left"]) == [f"{place}/fresh", f"{place}/gone"]
    assert said["discarded"] == [] and hf.get("clash-2")["state"] == "detached"
    assert (place / "file").read_text() == "branch\n" and (place / "same").read_text() == "branch\n"
    assert (place / "gone").read_text() == "parent\n"
    assert (place / "fresh").read_text() == "parent\n"


def test_r5_paths_are_relative_to_the_caller_and_must_be_changes(hf: Installation) -> None:
    place = branched(hf, "paths", 2)
    says(hf, "paths-1", "echo branch > file; echo branch > deep/a")
    says(hf, "paths", "echo parent > file; echo parent > deep/a")
    assert len(diff(hf, "paths-1", "deep", cwd=place)["files"]) == 1
    refused = hf.cli("diff", "paths-1", "fiel", cwd=place)
    assert refused.rc == 3 and f"{place}/fiel" in refused.err, refused
    assert "`holdfast diff paths-1` lists the changed paths" in refused.err
    refused = hf.cli("keep", "paths-1", "--take", "fiel", cwd=place)
    assert refused.rc == 3 and f"{place}/fiel" in refused.err
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    with pytest.raises(Usage, match="is not absolute"):
        link.request("diff", session="paths-1", path="file", every=False, texts=False)
    link.close()
    assert hf.cli("keep", "paths-1").rc == 4
    *_, written = [one for one in hf.ok("log", "paths-1", "--json").records if "intent" in one]
    assert written["outcome"] == "void" and written["reason"] == "2 conflicts: nothing was written"
    hf.ok("keep", "paths-1", "--take", "file", "--leave", "deep/", cwd=place)
    assert (place / "file").read_text() == "branch\n"
    assert (place / "deep/a").read_text() == "parent\n"


def test_r5_an_untouched_branch_took_no_act(hf: Installation) -> None:
    branched(hf, "idle", 2)
    assert hf.ok("discard", "idle-1", "--json").json["left"]["acts"] == 0
    says(hf, "idle-2", "true")
    assert "it took 1 act;" in hf.ok("discard", "idle-2").out
    refused = hf.cli("fork", "idle", "-n", "0")
    assert refused.rc == 2 and "-n 0 is not a number of branches" in refused.err


def sees(hf: Installation, name: str, address: str) -> bool:
    found = (hf.home / "branches").glob(name)
    return any(address in one.read_text() for one in found)


def test_r5_what_left_a_discarded_branch_is_listed_and_recorded(hf: Installation) -> None:
    """A connection to the outside that is open at the end, and nothing leaves the branch later."""
    place = hf.user / "leaves"
    place.mkdir()
    hf.ready("leaves", "--contained", "--net", "host", "--cwd", str(place))
    hf.ok("fork", "leaves", "-n", "3")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        for name in ("leaves-1", "leaves-2"):
            says(
                hf, name, f"exec 9<>/dev/tcp/127.0.0.1/{port}; trap 'echo last words >&9' EXIT HUP"
            )
        peers = [outside.accept()[0] for _ in range(2)]
        with socket.create_server(("127.0.0.1", 0)) as other:
            before = f"127.0.0.1:{other.getsockname()[1]}"
            says(hf, "leaves-1", f"exec 8<>/dev/tcp/{before.replace(':', '/')}")
            name = f"*/connections-{hf.get('leaves-1')['id']}"
            eventually(lambda: sees(hf, name, before), "the host sees it")
            says(hf, "leaves-1", "exec 8>&-")
        left = hf.ok("discard", "leaves-1", "--json").json["left"]
        assert [one["remote"] for one in left["earlier"]] == [before] and not left["more"]
        [one] = left["connections"]
        assert one["remote"] == f"127.0.0.1:{port}" and one["program"] == "bash"
        second = hf.get("leaves-2")["id"]
        [left] = hf.ok("keep", "leaves-3", "--json").json["discarded"]
        assert left["id"] == second and left["acts"] == 1
        assert [one["remote"] for one in left["connections"]] == [f"127.0.0.1:{port}"]
        *_, written = [
            one for one in hf.ok("log", "leaves-3", "--json").records if one["kind"] == "keep"
        ]
        assert list(written["facts"]["discarded"]) == [second]
        for peer in peers:
            peer.settimeout(60)
            with peer:
                assert peer.recv(100) == b""


def test_t4_keep_is_not_led_out_of_the_directory(hf: Installation) -> None:
    """The parent exchanges a directory for a link to another place."""
    place = branched(hf, "led")
    outside = hf.user / "outside"
    outside.mkdir()
    says(hf, "led-1", "echo branch > deep/a; echo branch > deep/new")
    shutil.rmtree(place / "deep")
    (place / "deep").symlink_to(outside)
    refused = hf.cli("keep", "led-1")
    assert refused.rc == 4 and "is no directory any more" in refused.out
    assert [*outside.iterdir()] == []


def test_a5_keep_and_discard_need_the_right(hf: Installation) -> None:
    branched(hf, "right")
    hf.ok("operator", "add", "reader")
    hf.ok("grant", "reader", "--rights", "execute", "--session", "right-1")
    assert hf.cli("--as", "reader", "diff", "right-1").rc == 0
    for command in ("keep", "discard", "fork"):
        refused = hf.cli("--as", "reader", command, "right-1")
        assert refused.rc == 4 and "fork" in refused.err


def test_a5_contents_of_files_need_the_right_to_files(hf: Installation) -> None:
    """`diff` reads them, and `keep` writes them into the parent's directory."""
    place = branched(hf, "contents")
    says(hf, "contents-1", "echo secret > file")
    hf.ok("operator", "add", "looker")
    hf.ok("grant", "looker", "--rights", "observe,fork", "--session", "contents-1")
    hf.ok("grant", "looker", "--rights", "observe,fork,files", "--session", "contents")
    for command in ("diff", "keep"):
        refused = hf.cli("--as", "looker", command, "contents-1")
        assert refused.rc == 4 and "files" in refused.err and "secret" not in refused.out
    hf.ok("grant", "looker", "--rights", "files", "--session", "contents-1")
    assert "secret" in hf.ok("--as", "looker", "diff", "contents-1").out
    hf.ok("--as", "looker", "keep", "contents-1")
    assert (place / "file").read_text() == "secret\n"


def test_a5_keep_needs_the_right_on_all_that_it_touches(hf: Installation) -> None:
    """It writes into the directories of the parent, and discards the other branches."""
    place = branched(hf, "touches", 2)
    says(hf, "touches-1", "echo new > file")
    hf.ok("operator", "add", "tidier")
    for session in ("touches-1", "touches"):
        hf.ok("grant", "tidier", "--rights", "execute,fork", "--session", session)
        refused = hf.cli("--as", "tidier", "keep", "touches-1")
        assert refused.rc == 4 and "fork" in refused.err
        assert "new" not in (place / "file").read_text()
    hf.ok("--as", "tidier", "keep", "touches-1", "--others")
    assert "new" in (place / "file").read_text()
    assert says(hf, "touches-2", "echo runs") == "runs\n"


def test_r5_a_branch_of_a_branch_is_kept_by_hand(hf: Installation) -> None:
    branched(hf, "nested")
    says(hf, "nested-1", "echo one > file")
    hf.ok("fork", "nested-1", "--name", "deeper")
    says(hf, "deeper", "echo two > file; echo x > more")
    said = diff(hf, "deeper")["files"]
    assert [(Path(one["path"]).name, one["what"]) for one in said] == [
        ("file", "changed"),
        ("more", "added"),
    ]
    assert "-one\n+two\n" in said[0]["text"]
    refused = hf.cli("keep", "deeper")
    assert refused.rc == 7 and "the parent is a branch itself" in refused.err


@pytest.mark.parametrize("step", cases([1, 4, 8], again=[4]))
def test_r5_an_interrupted_keep_goes_on_where_it_was(fresh: Installation, step: int) -> None:
    """The host is killed while it writes."""
    criu()
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@host.keep.step#{step}"})
    place = branched(fresh, "cut", 2)
    says(fresh, "cut-1", CHANGES)
    host = fresh.host_pid
    assert fresh.cli("keep", "cut-1").rc != 0
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    assert "was interrupted" in fresh.cli("keep", "cut-2").err
    (place / "moved").write_text("in between")
    newer = fresh.cli("keep", "cut-1", "--json")
    said = newer.json
    assert newer.rc == 4 and said["done"] and said["resumed"] and said["discarded"] == []
    assert [one["path"] for one in said["conflicts"]] == [f"{place}/moved"]
    assert (place / "moved").read_text() == "in between"
    assert (place / "deep").read_text() == "flat\n" and (place / "file").read_text() == "new\n"
    assert (place / "made/binary").read_bytes() == b"a\0b" and not (place / "gone").exists()
    assert not list(place.rglob(".holdfast-keep*"))
    (conflict,) = fresh.cli("keep", "cut-1", "--json").json["conflicts"]
    assert conflict["path"] == f"{place}/moved"
    said = fresh.ok("keep", "cut-1", "--leave", f"{place}/moved", "--json").json
    assert [one["name"] for one in said["discarded"]] == ["cut-2"]


def test_r5_an_interrupted_keep_can_be_given_up(fresh: Installation) -> None:
    criu()
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": "kill@host.keep.decided"})
    place = branched(fresh, "gives", 2)
    says(fresh, "gives-1", "echo first > file")
    says(fresh, "gives-2", "echo second > file")
    host = fresh.host_pid
    assert fresh.cli("keep", "gives-1").rc != 0
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    assert "was interrupted" in fresh.cli("keep", "gives-2").err
    fresh.ok("discard", "gives-1")
    assert fresh.ok("keep", "gives-2", "--json").json["done"]
    assert (place / "file").read_text() == "second\n"


KILLED_AT = ["reads", "staged", "decided", "written", "step", "applied"]


@pytest.mark.parametrize("step", cases(KILLED_AT, again=["written"]))
def test_r5_a_host_that_dies_in_a_keep_finishes_it_later(fresh: Installation, step: str) -> None:
    criu()
    fresh.quick("up", "--detach", env={"HOLDFAST_PROBE": f"kill@host.keep.{step}"})
    place = branched(fresh, "dies", 2)
    says(fresh, "dies-1", CHANGES)
    host = fresh.host_pid
    assert fresh.cli("keep", "dies-1").rc != 0
    eventually(lambda: gone(host) or None, "the host to die")
    fresh.ok("up", "--detach")
    states = {one["name"]: one["state"] for one in fresh.ok("branches", "--json").json}
    assert states == {"dies-1": "detached", "dies-2": "detached"}, "none is discarded or stopped"
    assert says(fresh, "dies-1", "cat file") == "new\n"
    assert fresh.ok("keep", "dies-1", "--json").json["done"]
    assert (place / "deep").read_text() == "flat\n" and (place / "file").read_text() == "new\n"
    assert (place / "made/binary").read_bytes() == b"a\0b" and not (place / "gone").exists()
    assert not list(place.rglob(".holdfast-keep*"))


@pytest.mark.skipif(not ROOT, reason="it is being run as an ordinary user")
def test_r5_as_an_ordinary_user() -> None:
    criu()
    if shutil.which("useradd") is None:
        pytest.skip("useradd is not installed")
    passes_as_ordinary_user(__file__)
