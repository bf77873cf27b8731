"""Rules about the repository itself: what the documents claim is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from holdfast.core import session
from holdfast.faces.cli.main import COMMANDS
from holdfast.home.config import OPTIONS
from holdfast.model import errors

ROOT = Path(__file__).parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    assert "./check" in text("README.md")
    assert re.search(r"exec \./check$", text(".ci/run").strip())


def test_the_lifecycle_diagram_is_drawn_from_the_table() -> None:
    assert session.diagram() in text("ARCHITECTURE.md"), (
        "run: python -c 'from holdfast.core.session import diagram; print(diagram())'"
    )


def test_every_step_of_the_lifecycle_leads_to_a_known_state() -> None:
    for state, row in session.TABLE.items():
        assert state in session.STATES
        assert set(row.values()) <= set(session.STATES)
    assert session.TABLE["reaped"] == {}


def test_invariants_name_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text("ARCHITECTURE.md"))
    assert len(named) >= 10
    for path, function in named:
        assert (ROOT / path).exists(), path
        if function:
            assert f"def {function}(" in text(path), f"{path}::{function}"


def test_every_command_is_documented() -> None:
    page = text("docs/commands.md")
    for name, command in COMMANDS.items():
        assert f"`{name}" in page, f"docs/commands.md does not mention {name}"
        assert command.example.startswith("holdfast ")


def test_the_protocol_page_is_rendered_from_the_code() -> None:
    fresh = subprocess.run(
        [sys.executable, "scripts/render_protocol.py", "--check"], cwd=ROOT, check=False
    ).returncode
    assert fresh == 0, "run: python scripts/render_protocol.py"


def test_every_option_is_documented() -> None:
    page = text("docs/configuration.md")
    for option in OPTIONS:
        assert f"`{option.key}`" in page, f"docs/configuration.md does not mention {option.key}"
        assert option.help


def test_every_error_is_documented() -> None:
    page = text("docs/errors.md")
    for cls in errors.ALL:
        assert f"`{cls.name}`" in page, f"docs/errors.md does not mention {cls.name}"


def test_tests_wait_on_events_not_on_time() -> None:
    """A sleep in a test is either too short (flaky) or too long (slow). Polling with a deadline is in the harnesses."""
    allowed = {"deadline", "poll", "until", "pause"}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))", line):
                assert any(word in line for word in allowed), (
                    f"{path.relative_to(ROOT)}:{number} sleeps: {line.strip()}"
                )


def test_links_between_documents_resolve() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_no_registry_hosts_and_no_foreign_paths() -> None:
    """The project stands alone."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in files:
        path = ROOT / name
        if (
            path.suffix in (".py", ".md", ".toml", ".sh", "")
            and path.is_file()
            and path != Path(__file__)
        ):
            content = path.read_text(errors="replace")
            for bad in (
                "../shared",
                "/work/",
                "files.pythonhosted",
                "deb.debian",
                "registry.npmjs",
            ):
                assert bad not in content, f"{name} mentions {bad}"
