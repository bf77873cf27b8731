"""Rules about the repository: the documents agree with the code."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.core.contract.output import CONDITIONS
from holdfast.core.contract.table import OPERATIONS
from holdfast.core.session import lifecycle
from holdfast.faces.cli.main import COMMANDS
from holdfast.home.config import OPTIONS
from holdfast.model import errors

ROOT = Path(__file__).parents[2]
COLUMNS = 100


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    assert "./check" in text("README.md")
    assert re.search(r"exec \./check$", text(".ci/run").strip())


def test_the_lifecycle_diagram_is_drawn_from_the_table() -> None:
    assert lifecycle.diagram() in text("ARCHITECTURE.md"), (
        "run: python -c 'from holdfast.core.session.lifecycle import diagram; print(diagram())'"
    )


def test_every_step_of_the_lifecycle_leads_to_a_known_state() -> None:
    for state, row in lifecycle.TABLE.items():
        assert state in lifecycle.STATES
        assert set(row.values()) <= set(lifecycle.STATES)
    assert lifecycle.TABLE["reaped"] == {}


def test_invariants_name_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text("ARCHITECTURE.md"))
    assert len(named) >= 10
    for path, function in named:
        assert (ROOT / path).exists(), path
        if function:
            assert f"def {function}(" in text(path), f"{path}::{function}"


def test_every_command_is_documented() -> None:
    page = text("docs/reference/commands.md")
    for name, command in COMMANDS.items():
        assert f"`{name}" in page, f"docs/reference/commands.md does not mention {name}"
        assert command.example.startswith("holdfast ")


def test_the_protocol_page_is_rendered_from_the_code() -> None:
    fresh = subprocess.run(
        [sys.executable, "scripts/render_protocol.py", "--check"], cwd=ROOT, check=False
    ).returncode
    assert fresh == 0, "run: python scripts/render_protocol.py"


def test_every_option_is_documented() -> None:
    page = text("docs/reference/configuration.md")
    for option in OPTIONS:
        assert f"`{option.key}`" in page, (
            f"docs/reference/configuration.md does not mention {option.key}"
        )
        assert option.help


def test_every_condition_of_wait_is_documented() -> None:
    for page in ("guides/write-scripts", "reference/attention", "reference/commands"):
        named = text(f"docs/{page}.md").replace("`port:N`", "`port:NUMBER`")
        assert [one for one in CONDITIONS if f"`{one}`" not in named] == [], page


def test_every_act_is_in_the_table_of_its_names() -> None:
    table = text("docs/reference/record.md").partition("## The names of an act")[2]
    rows = re.findall(r"^\| (`[^|]+) \| `([^|`]+)`", table, re.M)
    said = {op: kind for ops, kind in rows for op in re.findall(r"`([a-z.]+)`", ops)}
    assert {one.name: said.get(one.name) for one in OPERATIONS.values() if one.act} == {
        one.name: one.kind for one in OPERATIONS.values() if one.act
    }


def test_every_error_is_documented() -> None:
    page = text("docs/reference/errors.md")
    for cls in errors.ALL:
        assert f"`{cls.name}`" in page, f"docs/reference/errors.md does not mention {cls.name}"


def test_tests_wait_on_events_not_on_time() -> None:
    """A sleep in a test is too short (flaky) or too long (slow). Harnesses poll with a deadline."""
    allowed = {"deadline", "poll", "until", "pause"}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path == Path(__file__) or "simulation" in path.parts:  # virtual time
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\btime\.sleep\(|\basyncio\.sleep\((?!0\))", line):
                assert any(word in line for word in allowed), (
                    f"{path.relative_to(ROOT)}:{number} sleeps: {line.strip()}"
                )


def anchors(page: str) -> set[str]:
    """The anchors of a page, as GitHub derives them from its headings."""
    found = re.findall(r"^#+ (.*)$", page, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_between_documents_resolve() -> None:
    for path in documents():
        page = path.read_text()
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page):
            other = path.parent / target if target else path
            assert other.exists(), f"{path.relative_to(ROOT)} links to {target}"
            if anchor:
                assert anchor in anchors(other.read_text()), (
                    f"{path.relative_to(ROOT)} links to {target}#{anchor}"
                )


def test_every_guide_and_reference_page_is_on_the_map() -> None:
    page = text("docs/README.md")
    for folder in ("guides", "reference", "explanation"):
        for path in sorted((ROOT / "docs" / folder).glob("*.md")):
            assert f"]({folder}/{path.name})" in page, f"docs/README.md does not list {path.name}"


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_lines_of_documents_end_at_100_columns() -> None:
    """Tables, code and words without a space may be longer."""
    for path in documents():
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if not fenced and len(line) > 100 and " " in line.strip():
                shown = f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
                assert line.startswith(("|", "    ")) or "](" in line, shown


@pytest.mark.parametrize(
    "folder",
    [".", "docs", *(f"docs/{one}" for one in ("guides", "reference", "decisions", "explanation"))],
)
def test_documents_are_plain(folder: str) -> None:
    """At most 4% vague words: `python scripts/measure_code.py --worst 20` lists sentences."""
    spec = importlib.util.spec_from_file_location("measure", ROOT / "scripts" / "measure_code.py")
    assert spec is not None and spec.loader is not None
    measure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measure)
    words = vague = 0
    for path in sorted((ROOT / folder).glob("*.md")):
        for count, unclear, _ in measure.sentences(path):
            words, vague = words + count, vague + unclear
    assert vague <= 0.04 * words, f"{folder}: {vague / words:.1%} vague words"


def test_code_and_documents_name_files_that_exist() -> None:
    for page in ("docs/glossary.md", "ARCHITECTURE.md"):
        for name in re.findall(r"`((?:[a-z_]+/)+\w+\.py)", text(page)):
            places = (ROOT / name, ROOT / "src" / "holdfast" / name)
            assert any(place.exists() for place in places), f"{page} names {name}"
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|py)", path.read_text()):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


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


def test_tests_share_code_through_support_only() -> None:
    """A test module may be renamed, split or run alone: no other test module imports from it."""
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in (ROOT / "tests").rglob("*.py")
        for line in file.read_text().splitlines()
        if re.match(r"\s*(from|import) tests\.(?!support|vectors)", line)
        and file.stem != "test_halt"  # runs itself as an ordinary user
    ]
    assert not found, found


def test_only_folders_with_long_lines_are_exempt_from_the_limit() -> None:
    """A folder whose last long line is gone leaves the list in pyproject.toml."""
    project = tomllib.loads(text("pyproject.toml"))
    ignored = project["tool"]["ruff"]["lint"]["per-file-ignores"]
    for pattern in (p for p, rules in ignored.items() if "E501" in rules):
        files = list(ROOT.glob(pattern))
        lines = [line for file in files for line in file.read_text().splitlines()]
        assert any(len(line) > COLUMNS for line in lines), f"{pattern} is clean: remove it"


def test_any_is_rare_in_every_package() -> None:
    """The number that `python scripts/measure_code.py` prints; `debt` has the packages above."""
    limit, debt = 6, {"sdk"}  # per 1,000 lines
    source = ROOT / "src" / "holdfast"
    for package in (path for path in source.iterdir() if path.is_dir()):
        texts = [path.read_text() for path in package.rglob("*.py") if "_pb2" not in path.name]
        lines = sum(one.count("\n") for one in texts)
        untyped = sum(len(re.findall(r"\bAny\b", one)) for one in texts)
        if package.name not in debt:
            assert untyped * 1000 <= limit * lines, f"{package.name}: {untyped} in {lines} lines"


def test_the_modules_that_begin_first_exist() -> None:
    """tests/conftest.py gives the workers these modules first."""
    assert not [
        one for one in text("tests/longest.txt").split() if not (ROOT / "tests" / one).exists()
    ]
