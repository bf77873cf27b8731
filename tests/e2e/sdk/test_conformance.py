"""The conformance suite passes for this build and for a client written from docs/ alone (T6)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.conformance import client_cases, host_cases
from tests.support.installation import DEADLINE_S, Installation

ROOT = Path(__file__).parents[3]
TINY = ROOT / "examples/tiny_client.py"
SDK = ROOT / "tests/support/peers/sdk_client.py"

# Rules that a client may break: the case that must be red, and the change in the tiny client.
BROKEN = {
    "hello": ('said |= {"offered": hello["version"], ', 'said |= {"offered": 1, '),
    "run": ('"seen": place["seen"]', '"seen": None'),
    "offsets": ("fields[name] = part[1]", "fields[name] = part[0] + len(part[2])"),
    "reconnect": (
        "            self._sock.connect(self._path)",
        "            self._client += 4\n            self._sock.connect(self._path)",
    ),
    "run-repeated": (
        '        if "seq" not in fields:\n',
        '        if "seq" not in fields or self._number:\n',
    ),
    "input-window": ("min(until, at + INPUT_BYTES)", "at + INPUT_BYTES"),
    "unknown": ('raise Problem("outcome_unknown", 8, why)', 'raise Problem("lost", 6, why)'),
}


def suite(env: dict[str, str], *words: str) -> dict[str, Any]:
    """The report of the suite."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.testing.conformance", *words],
        env=env,
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    red = [one for one in report["results"] if one["verdict"] == "failed"]
    assert bool(red) == done.returncode, report
    return {one["case"]: one["verdict"] for one in report["results"]} | {"red": red}


def tiny(hf: Installation, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TINY), *words],
        env=hf.env | {"HOLDFAST_AS": "tester"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_t6_a_client_written_from_the_docs_passes(hf: Installation) -> None:
    found = suite(hf.env, "client", "--json", "--", sys.executable, str(TINY), "conformance")
    assert not found.pop("red")
    assert found == {case.name: "passed" for case in client_cases.CASES} | {"credit": "skipped"}


def test_t6_the_python_api_passes(hf: Installation) -> None:
    found = suite(hf.env, "client", "--json", "--", sys.executable, str(SDK))
    assert not found.pop("red")
    skipped = {name for name, verdict in found.items() if verdict == "skipped"}
    assert skipped <= {"input-window"}


@pytest.mark.parametrize("case", BROKEN)
def test_t6_a_broken_client_is_red(hf: Installation, tmp_path: Path, case: str) -> None:
    old, new = BROKEN[case]
    text = TINY.read_text()
    assert text.count(old) == 1, "the tiny client has changed: mend this test"
    broken = tmp_path / "client.py"
    broken.write_text(text.replace(old, new))
    command = [sys.executable, str(broken), "conformance"]
    found = suite(hf.env, "client", "--json", "--only", case, "--", *command)
    assert found[case] == "failed", found


def test_t6_this_host_passes(hf: Installation) -> None:
    hf.ready("mine")
    found = suite(hf.env, "host", "--json", "--as", "tester")
    assert not found.pop("red")
    assert found == {case.name: "passed" for case in host_cases.CASES}
    names = [one["name"] for one in json.loads(hf.quick("ls", "--all", "--json"))]
    assert names == ["mine"], "the suite leaves nothing behind"


def test_t6_a_client_written_from_the_docs_uses_a_real_host(hf: Installation) -> None:
    hf.ready("tiny")
    done = tiny(hf, "run", "tiny", "echo from-the-tiny-client; (exit 4)")
    assert (done.returncode, done.stdout) == (4, "from-the-tiny-client\n"), done.stderr
    assert " tiny " in tiny(hf, "list").stdout
    assert tiny(hf, "send", "tiny", "echo ty''ped").stdout.startswith("hf:")
    hf.wait("tiny", "text:typed")
    assert "typed" in tiny(hf, "view", "tiny").stdout.split("\n")
    assert "from-the-tiny-client" in tiny(hf, "read", "tiny").stdout
    log = [json.loads(one) for one in hf.quick("log", "tiny", "--json").splitlines()]
    assert {one["attestation"] for one in log if one.get("modality") == "tiny"} >= {"actor-signed"}


def test_t6_the_tiny_client_imports_nothing_of_holdfast() -> None:
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(TINY.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    foreign = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"cryptography.hazmat.primitives.asymmetric.ed25519"}
