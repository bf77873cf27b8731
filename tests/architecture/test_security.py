"""docs/security.md against the code: each line has a test that exists, or says why it has none. And the lines that are rules about the code itself."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"
LINES = 16
REASONS = ("not yet: ", "does not apply: ")


def rows(heading: str) -> list[list[str]]:
    """Of the table below that heading."""
    _, _, after = (ROOT / "docs" / "security.md").read_text().partition(f"\n## {heading}\n")
    table = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table[1:]
        if not line.startswith("|---")
    ]


def test_every_line_of_the_checklist_has_a_test_that_exists_or_a_reason() -> None:
    checklist, elsewhere = rows("The checklist"), rows("What went wrong elsewhere")
    assert {row[0] for row in checklist} == {str(n) for n in range(1, LINES + 1)}
    assert len(elsewhere) >= 12
    for row in (*checklist, *elsewhere):
        proof = row[-1].strip()
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", proof)
        if not named:
            assert proof.startswith(REASONS) and len(proof) > 30, f"neither test nor reason: {row}"
        for path, function in named:
            assert (ROOT / path).exists(), path
            assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.M), (
                f"{path}::{function}"
            )


# ------------------------------------------------------------ comparing secrets

SECRET = re.compile(
    r"(^|_)(secret|token|pass_?|password|passphrase|private|verifier|mac|psk|digest|pin|bearer|authorization)s?$"
)
COMPARED = {
    (
        "host/uplinks.py",
        "id not in self._passwords",
    ): "an invitation's id is public: it is only looked up whether its code is at hand",
    ("client/pairing.py", "self._private[0] != machine"): "which machine a key was made for",
    ("core/units.py", "said[1] == _digest(lines[2])"): "whether a person edited a unit's text",
    ("faces/cli/relay.py", "act not in ACTS['token']"): "the word of a command",
    (
        "host/approvals.py",
        "binding != pending.binding.digest()",
    ): "the digest of what was judged, which is shown to who approves",
    (
        "host/engine.py",
        "s.label.get('token') == making.token(token)",
    ): "by which a repeated `new` is known; it opens nothing",
    (
        "host/screen.py",
        "blake2b(body, digest_size=16).digest() != digest",
    ): "of a snapshot that the host wrote itself",
    ("relay/book.py", "r.known.token == token"): "the id of a token, which is shown",
    ("relay/registry.py", "c.token.id == event.token"): "the id of a token, which is shown",
    (
        "relay/registry.py",
        "digest not in route.passes",
    ): "SHA-256 of a pass: time tells of the hash, and that leads to no pass",
    ("relay/registry.py", "s.digest not in route.passes"): "the same",
}


def names(node: ast.expr) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return [name]
        case ast.Call(func=func):
            return names(func)
        case ast.Subscript(value=value, slice=at):
            return [
                *names(value),
                *([at.value] if isinstance(at, ast.Constant) and isinstance(at.value, str) else []),
            ]
    return []


def known(node: ast.expr) -> bool:
    """A constant, which is no secret."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return all(map(known, parts))
    return False


def test_secrets_are_not_compared() -> None:
    """No `==` or `in` with a secret, whose time would tell how much of it was right: what is only called like one is listed above with the reason."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith("testing/") or "contract_pb2" in name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare) or not any(
                isinstance(o, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for o in node.ops
            ):
                continue
            sides = (node.left, *node.comparators)
            if not any(map(known, sides)) and any(
                SECRET.search(word) for one in sides for word in names(one)
            ):
                found.add((name, ast.unparse(node)))
    assert found <= COMPARED.keys(), (
        f"prove it, look its hash up, or say above why it is no secret: {sorted(found - COMPARED.keys())}"
    )
    assert found == COMPARED.keys(), f"no longer needed above: {COMPARED.keys() - found}"


# ------------------------------------------------------------ listening


def test_only_the_relay_listens_on_the_network() -> None:
    """Everything else listens on unix sockets in private directories."""
    listening = re.compile(
        r"\bAF_INET6?\b|create_server\(|start_server\(|add_insecure_port|add_secure_port|\.bind\(\("
    )
    at = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "testing") and listening.search(path.read_text())
    }
    words_only = {
        "core/units.py",
        "host/sockets.py",
        "host/procevents.py",
        "host/checks/gates.py",  # what a unit may, others' sockets, the kernel's word, whether a filter can be set
        "transport/websocket.py",
    }  # whether an address is still this machine's
    loopback = {
        "host/telemetry.py"
    }  # off by default, and refused elsewhere: tests/e2e/test_telemetry.py
    assert {name for name in at if not name.startswith("relay/")} <= words_only | loopback, at
    assert at & {"relay/server.py"}


# ------------------------------------------------------------ what is installed


def test_what_is_needed_by_few_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=~! ]", one)[0] for one in project["dependencies"]}
    assert not needed & {
        "grpcio",
        "cedarpy",
        "uvloop",
        "grpcio-tools",
        "opentelemetry-sdk",
        "prometheus-client",
    }
    assert {"grpc", "cedar", "otel"} <= project["optional-dependencies"].keys()
    lines = (
        (ROOT / "pyproject.toml")
        .read_text()
        .partition("dependencies = [")[2]
        .partition("\n]")[0]
        .strip()
        .splitlines()
    )
    for line in lines:
        assert re.search(r'"[\w-]+>=[\d.]+[^"]*",\s+# \w', line), (
            f"a lower bound and a reason: {line}"
        )
