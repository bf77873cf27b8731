"""Rooms: each folder of `host`, `core` and `client` is a subject and imports only rooms below.

Imports under TYPE_CHECKING count too: a module that names the type of another room depends on that
room. DEBT lists the imports that still break the rule. The list may only shrink: remove an entry
when its import goes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "holdfast"
MODULES_MAX = 22  # in one folder: more names than a reader can keep in mind

GROUND = {"runtime"}
LIVE = {"runtime", "processes", "terminal", "shell", "storage", "session"}
EVERYTHING = LIVE | {
    "people",
    "policy",
    "originators",
    "acts",
    "exec_gate",
    "doctor",
    "lifecycle",
    "checkpoints",
    "connections",
    "leases",
    "branches",
    "residency",
    "copies",
    "relays",
    "telemetry",
}

# package -> room, or module beside the rooms -> rooms of the same package that it may import
MAY: dict[str, dict[str, set[str]]] = {
    "host": {
        "runtime": set(),
        "terminal": GROUND,
        "shell": set(),
        "storage": GROUND,
        "policy": GROUND,
        "processes": GROUND,
        "people": GROUND | {"storage"},
        "doctor": GROUND | {"policy"},
        "session": LIVE,
        "originators": LIVE,
        "acts": LIVE | {"people", "policy"},
        "exec_gate": LIVE | {"people", "policy", "originators", "acts"},
        "leases": LIVE,
        "lifecycle": LIVE | {"exec_gate", "doctor", "leases"},
        "connections": LIVE,
        "checkpoints": LIVE | {"lifecycle", "connections", "leases"},
        "branches": LIVE | {"lifecycle", "checkpoints", "connections"},
        "residency": LIVE | {"acts", "lifecycle", "checkpoints"},
        "copies": LIVE | {"lifecycle", "checkpoints", "relays", "leases"},
        "relays": GROUND | {"people", "processes"},
        "fleet": GROUND | {"doctor", "leases", "copies"},
        "telemetry": LIVE | {"acts"},
        "engine": EVERYTHING | {"rediscovery"},
        "rediscovery": EVERYTHING | {"engine"},
        "requests": EVERYTHING | {"engine"},
        "service": set(),
        "server": {"runtime", "engine", "requests"},
        "main": EVERYTHING | {"engine", "requests", "server", "service"},
    },
    "core": {
        "branch": {"checkpoint"},
        "checkpoint": set(),
        "containment": set(),
        "contract": set(),
        "lease": set(),
        "shellcode": set(),
        "originators": {"shellcode"},
        "people": set(),
        "policy": {"shellcode", "originators", "people"},
        "reaper": set(),
        "record": {"contract"},
        "screen": set(),
        "sealed": {"people"},
        "session": {"originators"},
        "systemd_units": set(),
        "prometheus_text": set(),
    },
    "client": {
        "attach": {
            *(
                "gone",
                "link",
                "signing",
                "identity",
                "questions",
                "question_pages",
                "start",
                "remote",
            ),
            "presence",
        },
        "link": {
            *("everywhere", "gone", "identity", "remote", "repeating", "signing", "start"),
            "stdin",
        },
        "repeating": {"gone"},
        "gone": set(),
        "engine": {"gone", "link", "repeating", "attach", "signing"},
        "relayed": set(),
        "remote": {"gone", "link", "presence"},
        "pairing": {"gone", "link"},
        "transfers": {"engine"},
        "credential": {"link"},
        "environ": set(),
        "everywhere": set(),
        "ssh_pairing": set(),
        "attention": {"link", "following"},
        "following": {"gone", "link"},
        "questions": {"link"},
        "question_pages": set(),
        "identity": set(),
        "presence": set(),
        "signing": set(),
        "start": set(),
        "stdin": set(),
    },
}

# module -> modules of rooms that it should not know
DEBT: dict[str, set[str]] = {
    "host.telemetry.exporters": {"host.engine"},
    "host.telemetry.metrics": {"host.engine"},
}


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name below the package."""
    top = SRC / package
    return {
        ".".join(path.relative_to(top).with_suffix("").parts): path
        for path in sorted(top.rglob("*.py"))
        if path.name != "__init__.py"
    }


def imported(path: Path, package: str, names: set[str]) -> Iterator[str]:
    """Modules of `package` that a file imports anywhere, also late or for type checking only."""
    prefix = f"holdfast.{package}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        for name in found:
            if name.startswith(f"{prefix}."):
                below = name.removeprefix(f"{prefix}.")
                if below in names:
                    yield below


def breaches(package: str) -> dict[str, set[str]]:
    """Imports of a package that its table does not allow."""
    found: dict[str, set[str]] = {}
    known = modules(package)
    for name, path in known.items():
        room = name.split(".")[0]
        for other in imported(path, package, set(known)):
            their_room = other.split(".")[0]
            if their_room != room and their_room not in MAY[package][room]:
                found.setdefault(f"{package}.{name}", set()).add(f"{package}.{other}")
    return found


@pytest.mark.parametrize("package", sorted(MAY))
def test_rooms_import_only_the_rooms_below(package: str) -> None:
    for name, others in breaches(package).items():
        new = others - DEBT.get(name, set())
        assert not new, f"{name} imports {sorted(new)}: see MAY in {Path(__file__).name}"


@pytest.mark.parametrize("package", sorted(MAY))
def test_paid_debt_is_struck_off(package: str) -> None:
    found = breaches(package)
    for name, others in DEBT.items():
        if name.startswith(f"{package}."):
            paid = others - found.get(name, set())
            assert not paid, f"{name} no longer imports {sorted(paid)}: remove it from DEBT"


@pytest.mark.parametrize("package", sorted(MAY))
def test_every_room_is_in_the_table(package: str) -> None:
    rooms = {name.split(".")[0] for name in modules(package)}
    assert rooms == set(MAY[package])


@pytest.mark.parametrize("package", sorted(MAY))
def test_every_folder_is_in_the_picture(package: str) -> None:
    text = (SRC.parents[1] / "ARCHITECTURE.md").read_text()
    picture = text.split("## The rooms")[1].split("```")[1]
    folders = {path.name for path in (SRC / package).iterdir() if (path / "__init__.py").exists()}
    assert folders and not folders - set(picture.split())


@pytest.mark.parametrize("top", ["src/holdfast", "tests", "bench"])
def test_no_folder_has_more_modules_than_a_reader_can_keep_in_mind(top: str) -> None:
    folders = {path.parent for path in (SRC.parents[1] / top).rglob("*.py")}
    for folder in folders:
        count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        assert count <= MODULES_MAX, folder


@pytest.mark.parametrize(
    ("package", "room"),
    [(p, r) for p in MAY for r in MAY[p] if (SRC / p / r / "__init__.py").exists()],
)
def test_every_room_names_the_rooms_that_it_imports(package: str, room: str) -> None:
    init = SRC / package / room / "__init__.py"
    doc = " ".join((ast.get_docstring(ast.parse(init.read_text())) or "").split())
    if room == "requests":  # serves every room
        assert "may import all of them" in doc
        return
    said = re.search(r"(?:It|This room) imports ([^.]*)\.", doc)
    assert said is not None, f"{init} does not say what it imports"
    known = modules(package)
    used = {
        other.split(".")[0]
        for name, path in known.items()
        if name.split(".")[0] == room
        for other in imported(path, package, set(known))
    }
    named = {word for word in re.findall("`([a-z_]+)`", said[1]) if word in MAY[package]}
    assert named == used - {room}
