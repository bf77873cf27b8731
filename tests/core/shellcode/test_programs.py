"""The file of knowledge about programs is complete, well-formed and without contradictions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_type_hints

import pytest

from holdfast.core.shellcode import programs as module
from holdfast.core.shellcode.facts import DIALECTS
from holdfast.core.shellcode.programs import (
    Builtin,
    Effect,
    Language,
    Names,
    Programs,
    Reads,
    Wrapper,
    programs,
    text,
)
from holdfast.core.shellcode.reasons import CODES

RAW = tomllib.loads(text())
RECORDS: dict[str, type[NamedTuple]] = {
    "builtins": Builtin,
    "effects": Effect,
    "wrappers": Wrapper,
    "languages": Language,
    "reads": Reads,
}
OPTION = re.compile(r"[-+][A-Za-z0-9]?|--?[A-Za-z0-9][A-Za-z0-9-]*")
NAME = re.compile(r"[A-Za-z0-9_.:\[][A-Za-z0-9_.+-]*(?: [a-z]+)?")


def rows() -> Iterator[tuple[str, str, Mapping[str, object]]]:
    for section in RECORDS:
        for names, row in RAW[section].items():
            yield section, names, row


def test_the_file_has_exactly_the_known_sections() -> None:
    assert set(RAW) == set(Programs._fields)
    assert set(RAW["names"]) == set(programs().names._fields)


@pytest.mark.parametrize(("section", "names", "row"), [*rows()], ids=lambda v: str(v)[:30])
def test_a_row_has_known_fields_of_the_right_type(
    section: str, names: str, row: Mapping[str, object]
) -> None:
    hints = get_type_hints(RECORDS[section])
    for name, value in row.items():
        if name == "like":
            assert value in dict(_named(section)), value
            assert value not in names.split(", ")
        elif hints[name] == Names:
            assert isinstance(value, str), name
            assert value == value.strip() or value.endswith("\n")
            assert len(set(value.split())) == len(value.split()) > 0, (name, value)
        else:
            assert type(value) is hints[name], name
            assert value, "a field with its default value says nothing"


def _named(section: str) -> Iterator[tuple[str, object]]:
    for names, row in RAW[section].items():
        for name in names.split(", "):
            yield name, row


@pytest.mark.parametrize(
    "section", [s for s in Programs._fields if s not in ("names", "languages")]
)
def test_each_program_has_one_row(section: str) -> None:
    names = [name for name, _ in _named(section)]
    assert len(names) == len(set(names))
    assert all(NAME.fullmatch(name) for name in names), names


def test_fields_that_list_options_list_options() -> None:
    for row in programs().effects.values():
        for name in (*row.valued, *row.targets, *row.all_with, *row.here_with):
            assert OPTION.fullmatch(name), name
        assert set(row.targets) <= set(row.valued), "the value of a target is a word of its own"
        assert row.writes in ("all", "last", "rest", "none")
        assert row.destroys in ("", "always", "recursive")
    for wrapper in programs().wrappers.values():
        for name in (*wrapper.valued, *wrapper.bare, *wrapper.query, *wrapper.moves):
            assert OPTION.fullmatch(name), name
        kinds = (wrapper.valued, wrapper.bare, wrapper.query, wrapper.moves, wrapper.text)
        every = [name for kind in kinds for name in kind]
        assert len(every) == len(set(every)), "an option has one meaning"
        assert set(wrapper.targets) <= set(wrapper.valued)
        assert wrapper.alone == "" or wrapper.alone in CODES
        assert 0 <= wrapper.operands <= 1
    for reads in programs().reads.values():
        for name in (*reads.named, *reads.besides, *reads.moves, *reads.valued):
            assert OPTION.fullmatch(name), name
        for name in (*reads.here, *reads.up, *reads.home):
            assert not name.startswith(("/", "-")), name
    for values in (*programs().option_values.values(), *programs().databases.values()):
        assert all(OPTION.fullmatch(name) or name == "*" for name in values), values


def test_languages_do_not_overlap_and_shells_have_a_known_grammar() -> None:
    names = [
        "python3.11",
        "pypy3",
        "perl5",
        "ruby",
        "jruby",
        "node",
        "deno",
        "php8.2",
        "lua5.4",
        "julia",
        "erl",
        "ghc",
        "pwsh",
    ]
    for name in names:
        assert sum(bool(re.fullmatch(p, name)) for p in programs().languages) == 1, name
    assert set(programs().shells.values()) <= {*DIALECTS.values(), ""}


def test_git_hooks_and_python_modules_refer_to_known_names() -> None:
    assert programs().names.git_ref_updates <= set(programs().git_hooks)
    assert set(programs().python_modules.values()) <= set(programs().reads)


def test_the_file_is_not_read_before_it_is_needed() -> None:
    code = (
        "import holdfast.core.shellcode.implied, holdfast.core.policy.act_facts as g;"
        "from holdfast.core.shellcode.programs import programs;"
        "assert programs.cache_info().currsize == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert module.programs() is programs()
