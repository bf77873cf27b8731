"""The Python API: every public name is exported, documented, and used by a test or an example."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import holdfast
import holdfast.sync
from holdfast.model import errors
from holdfast.sdk import branches, drained, observed, results

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/python.md").read_text()
# The classes with methods: the section of the reference, and the words before a name there.
PLACES = {
    "Client": ("Client", ""),
    "Sessions": ("Client", "sessions."),
    "Machines": ("Client", "machines."),
    "Approvals": ("Client", "approvals."),
    "Terminal": ("Client", "terminal."),
    "Operators": ("client.operators", ""),
    "Session": ("Session", ""),
    "Turn": ("Session", "turn."),
    "Files": ("session.files", ""),
    "Running": ("Running", ""),
    "Attachment": ("Attachment", ""),
    "Forward": ("Forward", ""),
}
SECTIONS = {section for section, _ in PLACES.values()}
RESULTS = {
    name: kind
    for module in (results, observed, branches, drained)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__
}
VALUES = [kind for kind in RESULTS.values() if dataclasses.is_dataclass(kind)]
INSIDE = {"engine", "everywhere", "heard", "step"}  # for the package itself


def members(kind: type) -> dict[str, list[str] | None]:
    """The public names of a class: the parameters of a method, None of an attribute."""
    found: dict[str, list[str] | None] = {}
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            found[name] = None
        elif callable(value):
            found[name] = [one for one in inspect.signature(value).parameters if one != "self"]
    given = inspect.getsource(vars(kind)["__init__"])
    return {**found, **dict.fromkeys(re.findall(r"self\.([a-z]\w*) = ", given))}


def cells(section: str) -> Iterator[tuple[str, list[str] | None]]:
    """The names in the first column of a section's tables, with the parameters of a call."""
    _, _, text = REFERENCE.partition(f"\n## `{section}`\n")
    for row in re.findall(r"^\| (`.*?) \|", text.partition("\n## ")[0], re.MULTILINE):
        for name, call in re.findall(r"`([\w.]+)((?:\(.*?\))?)`", row):
            inner = re.sub(r"\([^()]*\)", "", call[1:-1])
            words = [one.strip(" *").partition("=")[0] for one in inner.split(",") if one.strip()]
            yield name, words if call else None


def documented(section: str) -> dict[str, list[str] | None]:
    return dict(cells(section))


def test_t6_the_names_for_type_checkers_are_those_of_the_package() -> None:
    tree = ast.parse(Path(holdfast.__file__).read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast.")
        for alias in node.names
    }
    listed = {
        name: f"holdfast.{module}"
        for module, names in holdfast._NAMES.items()
        for name in names.split()
    }
    assert imported == listed
    for name, module in listed.items():
        assert getattr(holdfast, name) is getattr(importlib.import_module(module), name)
    known = (
        {kind.__name__ for kind in (*errors.ALL, errors.HoldfastError)}
        | set(RESULTS)
        | set(PLACES)
        | {"connect"}
    )
    assert set(listed) == known and known <= set(dir(holdfast))


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_t6_the_reference_has_every_method_with_its_parameters(section: str) -> None:
    public: dict[str, list[str] | None] = {}
    for name, (where, prefix) in PLACES.items():
        if where == section:
            known = members(getattr(holdfast.sync, name)).items()
            public |= {prefix + member: words for member, words in known}
    for part in ("sessions", "machines", "approvals", "terminal", "turn"):  # have rows of their own
        public.pop(part, None)
    assert documented(section) == public


def test_t6_the_reference_has_every_argument_of_connect() -> None:
    rows = REFERENCE.partition("## `holdfast.connect(…) -> Client`")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert named == list(inspect.signature(holdfast.connect).parameters)
    assert named == list(inspect.signature(holdfast.sync.connect).parameters)


def test_t6_the_reference_has_every_result_and_error() -> None:
    rows = REFERENCE.partition("\n## Results\n")[2].partition("\n## ")[0]
    shown = {
        name: re.findall(r"`(\w+)`", fields)
        for name, fields in re.findall(r"^\| `(\w+)` \| (.*) \|$", rows, re.MULTILINE)
    }
    assert shown.pop("Listing") == ["unreachable"]
    for kind in VALUES:
        named = [one.name for one in dataclasses.fields(kind)]
        named += [name for name, value in vars(kind).items() if isinstance(value, property)]
        assert shown.pop(kind.__name__) == named
    assert shown == {}
    said = REFERENCE.partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert {kind.__name__ for kind in errors.ALL} <= set(re.findall(r"`(\w+)`", said))


def test_t6_the_synchronous_classes_have_the_same_names() -> None:
    for name in PLACES:
        public = set(members(getattr(holdfast, name))) - INSIDE
        assert public <= set(members(getattr(holdfast.sync, name))), name


# ------------------------------------------------------------ used


@functools.cache
def calls() -> dict[str, list[ast.Call]]:
    """The calls in programs that use the API, by the last name of the called function."""
    found: dict[str, list[ast.Call]] = {}
    for path in sorted((*ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py"))):
        text = path.read_text()
        if re.search(r"^import holdfast|commands\.programs import", text, re.MULTILINE):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    found.setdefault(node.func.attr, []).append(node)
    return found


def _gives(call: ast.Call, parameter: inspect.Parameter, place: int) -> bool:
    """Whether a call gives a value for the parameter at that place."""
    by_name = parameter.name in [one.arg for one in call.keywords]
    return by_name or (parameter.kind is not parameter.KEYWORD_ONLY and len(call.args) > place)


def methods() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"holdfast.connect": holdfast.connect}
    for kind in PLACES:
        for name, value in vars(getattr(holdfast, kind)).items():
            if inspect.isfunction(value) and not name.startswith("_") and name not in INSIDE:
                found[f"{kind}.{name}"] = value
    return found


@pytest.mark.parametrize("name", methods())
def test_t6_every_method_and_parameter_is_used(name: str) -> None:
    made = calls().get(name.rpartition(".")[2], [])
    assert made, f"no test or example calls {name}"
    words = [
        one for one in inspect.signature(methods()[name]).parameters.values() if one.name != "self"
    ]
    unused = [
        one.name
        for place, one in enumerate(words)
        if not any(_gives(call, one, place) for call in made)
    ]
    assert not unused, f"no test or example gives {name} {', '.join(unused)}"


# ------------------------------------------------------------ Pydantic


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_m_pydantic_accepts_every_result(kind: type[Any]) -> None:
    adapter = TypeAdapter[Any](kind)
    assert adapter.json_schema()["type"] == "object"

    @settings(max_examples=5, suppress_health_check=list(HealthCheck))
    @given(st.builds(kind))
    def same(value: Any) -> None:
        assert adapter.validate_python(dataclasses.asdict(value)) == value

    same()
