"""docs/reference/security.md against the code, and security rules about the code itself.

Each line of the page names an existing test, or states a reason.
"""

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
    """The rows of the table below a heading."""
    _, _, after = (
        (ROOT / "docs" / "reference" / "security.md").read_text().partition(f"\n## {heading}\n")
    )
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
        if not existing_tests(proof):
            assert proof.startswith(REASONS) and len(proof) > 30, f"neither test nor reason: {row}"


def existing_tests(cell: str) -> int:
    """The number of tests that a cell names; each must exist."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    assert len(named) == cell.count("::"), f"not a test: {cell}"
    for path, function in named:
        assert (ROOT / path).exists(), path
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.M), (
            f"{path}::{function}"
        )
    return len(named)


def test_a_module_is_started_in_one_way() -> None:
    """`python -m` reads the working directory, which code of a session may have filled."""
    for file in SOURCE.rglob("*.py"):
        if file != SOURCE / "home" / "programs.py":
            assert not re.search(r'sys\.executable,\s*"-m"', file.read_text()), file


def test_every_promise_about_walls_has_a_test_and_says_what_is_not_promised() -> None:
    found = rows("Walls, gate and approvals")
    assert len(found) >= 12
    for row in found:
        clause, promise, proof, limit = row
        assert re.fullmatch(r"[A-Z]\d", clause) and promise, row
        assert existing_tests(proof) and len(limit) > 10, row


def test_documents_name_tests_that_exist() -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    known = {name for path in tests for name in re.findall(r"\bdef (test_\w+)\(", path.read_text())}
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        named = re.findall(r"`(?:[\w/.]+::)?(test_\w+)`", page.read_text())
        missing = sorted(set(named) - known)
        assert not missing, f"{page.relative_to(ROOT)} names {missing}"


# ------------------------------------------------------------ comparing secrets

SECRET = re.compile(
    r"(^|_)(secret|token|pass_?|password|passphrase|private|verifier|mac|psk|digest|pin|bearer|authorization)s?$"
)
COMPARED = {
    (
        "host/relays/uplinks.py",
        "id not in self._passwords",
    ): "an invitation's id is public: it is only looked up whether its code is at hand",
    ("client/pairing.py", "self._private[0] != machine"): "which machine a key was made for",
    (
        "core/systemd_units.py",
        "said[1] == _digest(lines[2])",
    ): "whether a unit was edited by hand",
    ("faces/cli/relay.py", "act not in ACTS['token']"): "the word of a command",
    (
        "core/policy/approvals.py",
        "binding.digest() != digest",
    ): "the same digest, which the approver's client computes again",
    (
        "host/acts/approvals.py",
        "binding != pending.binding.digest()",
    ): "the digest of what was judged, which is shown to who approves",
    (
        "host/lifecycle/prepare.py",
        "one.label.get('token') == token(given)",
    ): "by which a repeated `new` is known; it opens nothing",
    (
        "host/terminal/screen.py",
        "blake2b(body, digest_size=16).digest() != digest",
    ): "of a snapshot that the host wrote itself",
    ("relay/route_table.py", "r.known.token == token"): "the id of a token, which is shown",
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
    """No `==` or `in` with a secret, because the duration would reveal matching bytes.

    COMPARED lists names that only look like a secret, with the reason.
    """
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
        "prove it, look its hash up, or say above why it is no secret: "
        f"{sorted(found - COMPARED.keys())}"
    )
    assert found == COMPARED.keys(), f"no longer needed above: {COMPARED.keys() - found}"


# ------------------------------------------------------------ listening


def test_only_the_relay_listens_on_the_network() -> None:
    """All other programs listen on unix sockets in private directories."""
    listening = re.compile(
        r"\bAF_INET6?\b|create_server\(|start_server\(|add_insecure_port|add_secure_port|\.bind\(\("
    )
    at = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(SOURCE / "testing") and listening.search(path.read_text())
    }
    words_only = {
        "core/systemd_units.py",  # the rights of a unit
        "host/processes/sockets.py",  # sockets of other programs
        "host/connections/tables.py",  # likewise
        "keeper/outside.py",  # ends connections, by netlink
        "host/processes/process_events.py",  # reports of the kernel
        "host/doctor/gates.py",  # whether a filter can be installed
        "keeper/contain.py",  # starts the loopback interface of a network namespace
        "wire/exec_filter.py",  # families of sockets that sessions may open
        "host/residency/activity.py",  # asks the kernel for sockets of other programs
        "transport/websocket.py",  # whether an address still belongs to this machine
    }
    words_only |= {"host/requests/ports/forward.py"}  # connects to servers of a session
    words_only |= {"host/runtime/criu.py"}  # starts the loopback interface for a trial of CRIU
    words_only |= {"drill/checks.py"}  # the text of a program, which runs in a throw-away session
    # Off by default, and refused elsewhere: tests/e2e/record/test_telemetry.py, and
    # tests/e2e/sdk/test_forward.py for the address that a user asks for
    loopback = {"host/telemetry/exporters.py", "client/engine/forward.py"}
    loopback |= {"drill/connections.py"}  # for the moment of a drill
    loopback |= {"faces/http/server.py"}  # elsewhere only with TLS: tests/faces/test_http.py
    assert {name for name in at if not name.startswith("relay/")} <= words_only | loopback, at
    assert at & {"relay/server.py"}


# ------------------------------------------------------------ dependencies


def test_rarely_needed_libraries_are_extras() -> None:
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
    text = (ROOT / "pyproject.toml").read_text()
    lines = text.partition("dependencies = [\n")[2].partition("\n]")[0].splitlines()
    for reason, line in zip(lines[::2], lines[1::2], strict=True):
        assert re.fullmatch(r"  # \w.*\.", reason), f"a reason above {line}"
        only = "(; sys_platform == .linux.( and python_version < .3.14.)?)?"
        bound = rf'  "[\w.-]+>=[\d.]+(,<\d[\d.]*)?{only}",'
        assert re.fullmatch(bound, line), f"a lower bound: {line}"


def test_the_lowest_releases_are_those_that_are_installed_to_be_tested() -> None:
    """scripts/lowest.txt pins every library to the lower bound that pyproject.toml states."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    stated = [
        *project["dependencies"],
        *extras["cedar"],
        *extras["otel"],
        *extras["grpc"],
        *extras["http"],
    ]
    bounds = dict(re.findall(r"^([\w.-]+)>=([\d.]+)", one)[0] for one in stated)
    pins = dict(
        line.split("==")
        for line in (ROOT / "scripts/lowest.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    assert pins.pop("grpcio-tools") == pins["grpcio"]
    assert pins.keys() == bounds.keys()
    for name, pin in pins.items():
        assert pin == bounds[name] or pin.removesuffix(".0").startswith(bounds[name]), name
