"""The parser's process: bounded in time, size and memory; an unknown parser is not trusted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.core.shellcode.facts import TEXT_BYTES_MAX, Unparseable
from holdfast.host.policy import shfmt
from holdfast.host.policy.shfmt import Parser, find_shfmt


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def reason(parser: Parser, text: str = "ls", dialect: str = "bash") -> str:
    with pytest.raises(Unparseable) as caught:
        parser(text, dialect)
    return caught.value.reason.code


def test_the_packaged_binary_is_found_and_speaks_the_json_that_is_known() -> None:
    assert find_shfmt() is not None
    tree = Parser(wait_s=60.0)("a |& b", "bash")
    assert tree["Type"] == "File" and tree["Stmts"][0]["Cmd"]["Op"] == "|&"


@pytest.mark.parametrize("dialect", ["bash", "posix", "zsh", "mksh"])
def test_dialects(dialect: str) -> None:
    assert Parser(wait_s=60.0)("echo $x | wc", dialect)["Stmts"]


def test_texts_that_are_refused_before_the_parser() -> None:
    parser = Parser(wait_s=60.0)
    assert (
        reason(parser, "a\0b") == "control"
        and reason(parser, "a\r\n") == "control"
        and reason(parser, "\ud800") == "control"
    )
    assert (
        reason(parser, "x" * (TEXT_BYTES_MAX + 1)) == "size"
        and reason(parser, "ls", "fish") == "shell"
    )


def test_bad_grammar_is_told_with_the_place() -> None:
    with pytest.raises(Unparseable) as caught:
        Parser(wait_s=60.0)("rm 'x", "bash")
    assert (
        caught.value.reason.code == "parse"
        and "quote" in caught.value.reason.detail
        and "standard input" not in caught.value.reason.detail
    )


def test_recent_texts_are_remembered_and_large_ones_are_not() -> None:
    parser = Parser(wait_s=60.0)
    assert parser("ls a", "bash") is parser("ls a", "bash") and parser(
        "ls a", "bash"
    ) is not parser("ls a", "posix")
    big = "echo " + "x" * 5000
    assert parser(big, "bash") is not parser(big, "bash")
    for n in range(shfmt.KEPT_TEXTS + 10):
        parser._kept["bash", f"t{n}"] = {}
    parser("ls b", "bash")
    parser("ls c", "bash")
    assert len(parser._kept) <= shfmt.KEPT_TEXTS + 12


def test_a_missing_binary() -> None:
    assert reason(Parser("/nonexistent/shfmt")) == "parser"
    nothing = Parser(wait_s=60.0)
    nothing.binary = None
    assert reason(nothing) == "parser"


@pytest.mark.parametrize(
    "body",
    [
        "echo '{}'",
        "echo '[1'",
        'echo \'{"Type": "File", "Stmts": []}\'',
        'echo \'{"Type": "File", "Stmts": [{"Cmd": {"Type": "BinaryCmd", "Op": 12}}]}\'',
        "exit 0",
        "exit 3",
        "kill -9 $$",
        "yes",
        "exec sleep 100",
        "yes '{' | head -c 3000000",
    ],
)
def test_a_binary_that_is_something_else_is_never_believed(body: str, tmp_path: Path) -> None:
    parser = Parser(script(tmp_path / "shfmt", body), wait_s=0.3)
    assert reason(parser, "rm x") in ("parser", "size", "parse")
    assert reason(parser, "rm x") in ("parser", "size", "parse"), "and not the second time either"


def test_a_parser_that_was_only_slow_is_tried_again(tmp_path: Path) -> None:
    real = find_shfmt()
    slow = script(tmp_path / "shfmt", f'[ -e {tmp_path}/go ] && exec {real} "$@"; exec sleep 100')
    parser = Parser(slow, wait_s=0.3)
    assert reason(parser) == "parser"
    (tmp_path / "go").touch()
    parser.wait_s = 60.0
    assert parser("ls", "bash")["Type"] == "File"


def test_the_parser_gets_no_environment_and_no_descriptors(tmp_path: Path) -> None:
    out = tmp_path / "out"
    inherited = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        reason(
            Parser(
                script(
                    tmp_path / "shfmt",
                    f"{{ /usr/bin/env; ls -l /proc/$$/fd; pwd; }} > {out} 2>&1; exit 1",
                ),
                wait_s=60.0,
            )
        )
    finally:
        os.close(inherited)
    text = out.read_text()
    assert (
        "HOME=" not in text
        and str(tmp_path) + "\n" not in text.replace(str(out), "")
        and text.endswith("/\n")
    )
