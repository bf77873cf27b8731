"""`log` for people: a plain line per act, harmless to the terminal; `log verify` on files."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.policy import approvals
from holdfast.core.record import acts, audit, record
from holdfast.faces import record_lines
from holdfast.faces.cli import record as face
from holdfast.faces.verification import spread
from holdfast.model import signing
from holdfast.model.errors import NotFound, Usage
from tests.support.checkers.records import Scribe


def entries(scribe: Scribe) -> list[dict[str, Any]]:
    return [record.shown(w) for w in scribe.written]


def plain(scribe: Scribe, alone: bool = False) -> list[str]:
    """Without time and number."""
    return [line[26:] for line in record_lines.lines(entries(scribe), False, alone)]


def test_p2_one_line_per_act() -> None:
    assert plain(Scribe().day()) == [
        "host (host) session: event=created",
        "ann (cli) command: make -j8 -> allowed, applied, exit 0 [originators unknown]",
        "ann (cli) keys: (3 inputs, not stored)",
        "bot (mcp) command: grep -r 'é' . -> allowed, applied, exit 0 [on what ann left]",
        "bot (mcp) command: rm -rf / -> refused: it cannot be undone",
        "bot (mcp) command: git push -> held: ask [originators unknown]",
        "ann (cli) approve: 6",
        "bot (mcp) command: git push -> allowed, applied, exit 1 [originators unknown]",
        'carol (bot) line: "uptime" -> allowed, applied, exit 0 [originators unknown; '
        "signed by the bridge telegram]",
        "ann (cli) line: (not stored) -> allowed, void [originators unknown]",
        "ann (cli) seize",
        "bot (mcp) keys: (1 input, not stored) [not signed yet]",
    ]


def test_an_act_has_the_number_by_which_the_graph_knows_it() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"make")
    intent, outcome = entries(scribe)
    outcome = {**outcome, "facts": {**outcome["facts"], "act": 6}}
    assert record_lines.lines([intent, outcome], False)[0].endswith(
        "command: make -> allowed, applied, exit 0 (act 6) [originators unknown]"
    )
    held = {
        **intent,
        "phase": "fact",
        "kind": "exec",
        "verdict": "refuse",
        "reason": "no",
        "facts": {"words": "/usr/bin/nc", "pid": 7, "caused_by": "hf:s@1#6"},
    }
    (line,) = record_lines.lines([held], False)
    assert "exec: /usr/bin/nc (pid 7, of act 6) -> refused: no" in line


def test_a_typed_line_names_the_authors_of_used_state_once_and_in_words() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"make")
    entered = {
        **entries(scribe)[0],
        "phase": "fact",
        "kind": "entered",
        "verdict": None,
        "content": None,
        "kept": False,
        "attestation": "host",
        "originators": ["bob"],
        "facts": {"shaped": [{"act": None, "actor": "bob", "kind": "line", "name": ""}]},
    }
    assert record_lines.lines([entered], False)[0].endswith(
        "entered [on bob's part of the line; according to the host]"
    )


def test_an_outcome_that_comes_alone_is_its_own_line() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"make")
    made = [record_lines.lines([entry], False, alone=True) for entry in entries(scribe)]
    assert [line[0][26:] for line in made] == [
        "ann (cli) command: make -> allowed, no outcome yet [originators unknown]",
        "ann (cli) command of 1 -> applied, exit 0",
    ]


def test_ranges_of_keys_that_follow_each_other_are_one_line() -> None:
    scribe = Scribe()
    for _ in range(3):
        scribe.keys(scribe.ann, [b"a"] * 4)
    scribe.keys(scribe.bot, [b"a"])
    assert plain(scribe) == [
        "ann (cli) keys: (12 inputs, not stored)",
        "bot (mcp) keys: (1 input, not stored)",
    ]


def test_a_log_cannot_act_on_the_terminal() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"echo \x1b]0;owned\x07 \xe2\x80\xae \n" + b"x" * 5000)
    [line] = plain(scribe)
    assert (
        "\x1b" not in line
        and "\u202e" not in line
        and "\n" not in line
        and "\\x1b]0;owned\\x07 \\u202e \\n" in line
    )
    assert len(line) < 300 and "..." in line


def test_colours_only_when_asked() -> None:
    shown = entries(Scribe().day())
    assert not any("\x1b" in line for line in record_lines.lines(shown, False))
    assert all(line.startswith("\x1b[2m") for line in record_lines.lines(shown, True))


def test_redacted_late_and_recovered_entries_say_so() -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, b"secret")
    scribe.written[0] = scribe.written[0]._replace(content=None, salt=None)
    seize = scribe.draft(scribe.ann, "fact", "seize", b"")
    scribe.written.append(record.chain(seize, 3, scribe.tip, 5, late=True))
    scribe.add(
        replace(
            seize,
            attestation=record.HOST,
            statement=None,
            signature=None,
            key=None,
            content=None,
            salt=None,
        )
    )
    lines = plain(scribe)
    assert (
        "(redacted)" in lines[0]
        and lines[1].endswith("; written later]")
        and lines[2].endswith("; according to the host]")
    )


@pytest.mark.parametrize("page", [1, 3, 7, 100])
@pytest.mark.parametrize(
    "first, last, count",
    [(1, 20, 5), (1, 20, 20), (1, 20, 500), (8, 20, 500), (8, 20, 3), (1, 0, 5)],
)
def test_the_newest_are_put_together_from_pages(
    page: int, first: int, last: int, count: int
) -> None:
    everything = [{"seq": n} for n in range(first, last + 1)]

    def ask(after: int | None, limit: int) -> list[dict[str, Any]]:
        limit = min(limit, page)
        return (
            everything[-limit:]
            if after is None
            else [e for e in everything if e["seq"] > after][:limit]
        )

    assert face.newest(ask, count) == everything[-count:]


# ---------------------------------------------------------------- verify


def run(capsys: pytest.CaptureFixture[str], *words: str, **options: Any) -> tuple[int, str]:
    args = Namespace(
        words=list(words),
        follow=False,
        limit=10,
        json=False,
        kept=None,
        machine=None,
        operator=None,
    )
    for name, value in options.items():
        setattr(args, name, value)
    code = face.log(args)
    return code, capsys.readouterr().out


def test_p2_log_verify_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scribe, path, kept = Scribe().day(), tmp_path / "export", tmp_path / "kept"
    path.write_bytes(b"".join(scribe.export()))
    kept.write_bytes(record.signed_line("head", scribe.head()))
    code, out = run(capsys, "verify", str(path), kept=str(kept), machine=scribe.machine)
    assert code == 0 and "nothing is broken: entries 1 to 18" in out and scribe.machine in out
    code, out = run(capsys, "verify", str(path), json=True)
    assert code == 0 and json.loads(out)["ok"] is True and json.loads(out)["last"] == 18
    path.write_bytes(b"".join(scribe.export()).replace(b"cli", b"api", 1))
    code, out = run(capsys, "verify", str(path))
    assert code == 1 and "BROKEN" in out
    code, out = run(capsys, "verify", str(path), json=True)
    found = json.loads(out)
    assert (
        code == 1
        and found["ok"] is False
        and {"level", "code", "seq", "text"} == set(found["findings"][0])
    )


def test_missing_existing_and_invalid_files_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFound):
        run(capsys, "verify", str(tmp_path / "none"))
    (tmp_path / "there").write_text("x")
    with pytest.raises(Usage, match="exists"):
        run(capsys, "export", "s", str(tmp_path / "there"))
    assert run(capsys, "verify", str(tmp_path / "there"))[0] == 1
    with pytest.raises(Usage):
        run(capsys, "a", "b")


def test_several_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CHUNK_LINES", 7)
    scribe = Scribe().day()
    good = scribe.export()
    bad = [*good[:5], good[5].replace(b"cli", b"api"), *good[6:]]
    for lines in (good, bad, good[:-3]):
        assert audit.verify(lines, spread=spread) == audit.verify(lines)


@pytest.mark.parametrize(
    ("text", "keys", "shown"),
    [
        ("make", ["Enter"], '"make" Enter'),
        ("", ["C-c"], "C-c"),
        ("q", ["Up", "Escape"], '"q" Up Escape'),
        ('say "C-c"', [], '"say \\"C-c\\""'),
    ],
)
def test_typed_text_is_quoted_and_keys_have_their_names(
    text: str, keys: list[str], shown: str
) -> None:
    scribe = Scribe()
    scribe.act(scribe.ann, acts.content("send", {"text": text, "keys": keys}), kind="line")
    [line] = plain(scribe)
    assert line.startswith(f"ann (cli) line: {shown} -> ")


def test_an_approval_is_shown_with_the_approvers_signature() -> None:
    scribe = Scribe()
    said = approvals.statement("3f2a", "bb" * 32, scribe.ann.key, "approve", 9)
    signature = signing.sign(scribe.ann.private, approvals.DOMAIN, said).hex()
    facts = {"id": "3f2a", "operator": "bot", "act": "run", "statement": said.decode()}
    for given in (signature, "00" * 64):
        scribe.add(
            record.host_fact(
                *(scribe.session, 1, "approve", "ann", "cli"),
                key=scribe.ann.key,
                facts={**facts, "signature": given},
            )
        )
    good, bad = plain(scribe)
    assert good == (
        "ann (cli) approve: the run of bot (3f2a) "
        f"[signature {signature[:16]}... of {scribe.ann.key}]"
    )
    assert bad.endswith("DOES NOT VERIFY]")
