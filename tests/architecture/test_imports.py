"""Import rules between packages. Each ban states its reason."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "holdfast"
LAYERS = (
    "model",
    "home",
    "storage",
    "wire",
    "transport",
    "core",
    "checkpointer",
    "keeper",
    "host",
    "client",
    "courier",
    "relay",
    "sdk",
    "drill",
    "faces",
    "testing",
)

# package -> our packages that it may import
MAY: dict[str, set[str]] = {
    "model": {"model"},
    "home": {"home", "model"},
    "storage": {"storage", "model"},
    "wire": {"wire", "model"},
    "transport": {"transport", "model"},
    "core": {"core", "model"},
    "checkpointer": {"checkpointer", "wire", "model"},
    "keeper": {"keeper", "checkpointer", "wire", "model", "testing"},
    "host": {"host", "core", "wire", "model", "home", "storage", "transport", "testing"},
    "client": {"client", "core", "wire", "model", "home", "transport"},
    "courier": {"courier", "client", "home", "model"},
    "relay": {"relay", "core", "wire", "model", "home", "storage", "transport"},
    "sdk": {"sdk", "client", "core", "model", "home"},
    "drill": {"drill", "sdk", "home", "model"},
    "faces": {"faces", "drill", "sdk", "client", "core", "model", "home"},
    "testing": {"testing", "model", "home", "wire", "transport", "core", "host", "client", "relay"},
}

WHY: dict[tuple[str, str], str] = {
    (
        "keeper",
        "host",
    ): "programs meet only on the wire: a keeper must outlive every upgrade of the host",
    (
        "host",
        "keeper",
    ): "programs meet only on the wire: the host must work with keepers of older releases",
    (
        "relay",
        "host",
    ): "a relay routes: it holds no key that matters and cannot do what a host does",
    ("relay", "client"): "a relay routes: it is nobody's client",
    (
        "client",
        "host",
    ): "a client is stateless and may be on another machine; it knows the wire, not the host",
    ("core", "wire"): "what decides must not depend on how it is transported",
    ("model", "core"): "the nouns come first; imports go down only",
}

# (package, module outside of ours) -> why not
BANNED: dict[tuple[str, str], str] = {
    (
        "keeper",
        "asyncio",
    ): "a keeper runs one poll loop on the stdlib; asyncio costs megabytes per session",
    ("keeper", "threading"): "one thread: nothing to lock, nothing to deadlock, fork stays safe",
    ("keeper", "json"): "the keeper knows bytes and numbers, no documents",
    ("keeper", "subprocess"): "the keeper forks exactly one program, by itself",
    **{
        (p, m): "what decides does no I/O and reads no clock: time is an argument"
        for p in ("core", "model", "wire")
        for m in (
            "asyncio",
            "threading",
            "socket",
            "subprocess",
            "select",
            "signal",
            "time",
            "random",
        )
    },
    ("core", "os"): "what decides does not touch the world",
}
# A face may reach into the host for what must work without a running host.
EXCEPTIONS = {
    ("core/sealed/meeting.py", "wire"): "as the sealed channel, of which it is the beginning",
    ("faces/cli/relay.py", "relay"): "`relay serve` is the relay, and there is no host to ask",
    (
        "faces/cli/local_relay.py",
        "relay",
    ): "`up` asks the relay of this installation by its own socket, as `relay token` does",
    (
        "core/sealed/channel.py",
        "wire",
    ): "the sealed channel is a machine over wire/noise.py and wire/body.py, and pure",
    ("faces/cli/installation.py", "host"): "`doctor` must work when the host does not start",
    (
        "faces/cli/policy.py",
        "host",
    ): "`policy test` judges examples where there is no host, with the host's own parser",
}
# A library that one module may use, and the only module that may.
OUTSIDE = {
    (
        "model/signing.py",
        "cryptography",
    ): "nobody writes their own Ed25519; the keeper never signs, and who signs imports it late",
    ("model/agreement.py", "cryptography"): "nor their own X25519",
    ("wire/noise.py", "cryptography"): "nor their own AES-GCM; loaded by who talks through a relay",
    ("wire/contract_pb2.py", "google"): "generated for the runtime of protobuf",
    (
        "wire/outer.py",
        "google",
    ): "the contract with relays is a .proto; loaded by who talks through one",
    (
        "transport/websocket.py",
        "websockets",
    ): "nobody writes their own WebSocket; loaded by who dials a relay",
    (
        "transport/grpc.py",
        "grpc",
    ): "nor their own HTTP/2; the extra [grpc] only, loaded by who dials a relay by it",
    (
        "transport/pinning.py",
        "cryptography",
    ): "nor their own X.509; loaded to check the pinned key of a relay",
    (
        "transport/page.py",
        "websockets",
    ): "nor their own HTTP; loaded by relays, and by a host that shows its numbers on a port",
    (
        "transport/messages.py",
        "websockets",
    ): "nor judges what is one; loaded by who dials a relay, and by relays",
    (
        "core/sealed/meeting.py",
        "spake2",
    ): "nor their own password-authenticated key exchange; loaded for pairing by a typed code",
    ("faces/http/app.py", "starlette"): "nor their own HTTP requests; the extra [http] only",
    ("faces/mcp/server.py", "mcp"): "nor their own MCP; the extra [mcp] only",
    ("faces/mcp/http.py", "mcp"): "the type of the server",
    ("faces/cli/services/mcp.py", "mcp"): "the type of the server",
    ("faces/mcp/server.py", "mcp_types"): "the messages of that library",
    ("faces/mcp/server.py", "anyio"): "the streams of that library",
    ("faces/http/server.py", "uvicorn"): "nor their own HTTP server; the extra [http] only",
    ("faces/cli/invite.py", "segno"): "nor their own QR codes; loaded when one is shown",
    (
        "model/sealing.py",
        "cryptography",
    ): "nor their own AES-GCM and scrypt; imported only when a key has a passphrase",
}
STDLIB_ONLY = (
    *("model", "wire", "transport", "home", "core", "checkpointer", "keeper", "client", "faces"),
)

# Modules that open a sealed body or speak its content: no module of a relay may reach them.
SEALED = (
    "holdfast.wire.noise",
    "holdfast.wire.body",
    "holdfast.wire.frames",
    "holdfast.wire.hello",
    "holdfast.core.sealed.channel",
)


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports at run time (TYPE_CHECKING blocks are documentation)."""

    def walk(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.Import):
                yield from (a.name for a in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (
                    f"{node.module}.{a.name}" if node.module == "holdfast" else node.module
                    for a in node.names[:1]
                )
            for field in ("body", "orelse", "finalbody", "handlers"):
                inner = getattr(node, field, [])
                yield from walk([n for n in inner if isinstance(n, ast.stmt)])
                for handler in (h for h in inner if isinstance(h, ast.ExceptHandler)):
                    yield from walk(handler.body)

    yield from walk(ast.parse(path.read_text()).body)


# Modules that are longer than LINES_MAX: this table may only shrink.
LINES_MAX = 550
TOO_LONG = {
    "host/people/authority.py": 893,
    "host/people/invitations.py": 747,
    "host/acts/approvals.py": 669,
    "relay/registry.py": 659,
    "faces/cli/service.py": 570,
    "host/originators/writers.py": 624,
    "keeper/loop.py": 621,
    "host/acts/door.py": 659,
}


def files() -> list[Path]:
    return sorted(p for p in SRC.rglob("*.py") if p.parent != SRC)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_down_only(path: Path) -> None:
    package = path.relative_to(SRC).parts[0]
    relative = str(path.relative_to(SRC))
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "holdfast":
            if len(parts) == 1 or parts[1] == "__version__" or parts[1] not in LAYERS:
                continue
            if (relative, parts[1]) in EXCEPTIONS:
                continue
            why = WHY.get(
                (package, parts[1]),
                "imports go down only: model <- wire <- core <- programs <- faces",
            )
            assert parts[1] in MAY[package], f"{relative} imports {module}: {why}"
        else:
            for ban in {(package, parts[0]), (package, module)}:
                assert ban not in BANNED, f"{relative} imports {module}: {BANNED[ban]}"
            if package in STDLIB_ONLY and (relative, parts[0]) not in OUTSIDE:
                assert parts[0] in sys.stdlib_module_names, (
                    f"{relative} imports {module}: {package} uses the standard library only, "
                    "so that it is quick to start and cannot break"
                )


def named(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, at any place in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports say the whole name"
            yield node.module or ""
            yield from (f"{node.module}.{a.name}" for a in node.names)


def test_a_relay_cannot_open_what_it_carries() -> None:
    """No import of the relay, direct, indirect or late, leads to code that opens a sealed body."""
    modules = {
        ".".join(("holdfast", *p.relative_to(SRC).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): p
        for p in SRC.rglob("*.py")
    }
    seen: dict[str, str] = {name: name for name in modules if name.startswith("holdfast.relay")}
    todo = list(seen)
    assert todo, "there is no relay"
    while todo:
        module = todo.pop()
        if module == "holdfast":  # the names of the Python API, loaded when a program asks for one
            continue
        for name in named(modules[module]):
            if name in modules and name not in seen:
                seen[name] = f"{seen[module]} -> {name}"
                assert name not in SEALED and not name.startswith(
                    ("holdfast.host", "holdfast.client", "holdfast.faces")
                ), f"{seen[name]}: a relay routes sealed messages and must be unable to open them"
                todo.append(name)
    for name in SEALED:
        assert name in modules, f"{name} was renamed: the rule must follow it"


def test_only_composition_roots_read_the_environment() -> None:
    """Only the listed modules read the environment, so settings enter a program in one place."""
    allowed = {
        "host/main.py",
        "relay/main.py",
        "relay/local.py",
        "keeper/nursery.py",
        "faces/cli",
        "sdk/client.py",
        "drill/stage.py",
        "courier/__main__.py",
        "testing",
        "host/terminal/ghostty.py",
    }  # native: as its binding finds its library
    for path in files():
        relative = str(path.relative_to(SRC))
        if any(relative.startswith(a) for a in allowed):
            continue
        text = path.read_text()
        assert "os.environ" not in text and "getenv" not in text, (
            f"{relative} reads the environment; only a composition root does"
        )


def test_there_are_no_drawers() -> None:
    """No module is called utils, common, misc, helpers or shared: the name states no subject."""
    for path in files():
        assert path.stem not in ("utils", "common", "misc", "helpers", "shared"), path


def test_modules_stay_readable() -> None:
    """A module has at most LINES_MAX lines, unless TOO_LONG lists it."""
    for path in files():
        lines = len(path.read_text().splitlines())
        relative = str(path.relative_to(SRC))
        assert lines <= TOO_LONG.get(relative, LINES_MAX), (
            f"{relative} has {lines} lines; split it along its decisions"
        )


def test_every_package_and_module_says_what_it_is() -> None:
    for path in [p for p in SRC.rglob("*.py") if p.name != "__main__.py"]:
        assert ast.get_docstring(ast.parse(path.read_text())), (
            f"{path.relative_to(SRC)} has no docstring"
        )
