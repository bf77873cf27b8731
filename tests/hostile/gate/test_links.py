"""In a contained session links lead the words of an agent to other files; the gate follows (P4)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.host.policy.shfmt import find_shfmt
from tests.support.commands.approving import approve, free, waiting
from tests.support.installation import DEADLINE_S, Installation, eventually, installation
from tests.support.ordinary_user import passes_as_ordinary_user

pytestmark = pytest.mark.skipif(
    find_shfmt() is None, reason="without the shell's grammar every text is asked about"
)


class Place:
    """A contained session in a repository, beside a shared directory."""

    def __init__(self, hf: Installation) -> None:
        self.hf, self.project, self.shared = hf, hf.user / "project", hf.user / "shared"
        for each in (self.project, self.shared / "a" / "d", self.shared / "b" / "d"):
            each.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)
        share = f"--share={self.shared}:rw"
        hf.ready("links", "--contained", share, "--cwd", str(self.project), "--", "bash")

    def run(self, text: str) -> subprocess.Popen[bytes]:
        return self.hf.start("--as", "bot", "run", "links", "--", text)

    def done(self, text: str) -> None:
        self.hf.ok("--as", "bot", "run", "links", "--", text)

    def question(self, act: str) -> dict[str, Any]:
        return eventually(
            lambda: next((q for q in waiting(self.hf) if q["act"] == act), None), f"about {act}"
        )

    def denied(self, act: str, held: subprocess.Popen[bytes]) -> None:
        """The act is asked about; a person denies it."""
        approve(self.hf, self.question(act), "deny")
        held.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as hf:
        hf.people("ann")
        hf.people("bot", rights="execute,observe,files", kind="agent")
        yield Place(hf)


@pytest.fixture(autouse=True)
def clean(place: Place) -> None:
    free(place.hf, "links")
    for name in ("gl", "ol"):
        (place.project / name).unlink(missing_ok=True)


WAYS = {
    "of the text": ("rm -rf {link}", "run"),
    "of a program": ("sh -c 'exec rm -rf $0' {link}", "exec"),
    "of /proc": ("rm -rf /proc/self/cwd/{link}", "run"),
    "of a pattern": ("rm -rf {link}*", "run"),
}


@pytest.mark.parametrize("way", WAYS)
def test_p4_a_link_to_kept_files_is_followed(place: Place, way: str) -> None:
    place.done("ln -s .git gl")
    text, act = WAYS[way]
    place.denied(act, place.run(text.format(link="gl/objects")))
    assert (place.project / ".git" / "objects").is_dir()


def test_p4_a_link_out_of_the_project_is_followed(place: Place) -> None:
    place.done(f"ln -s {place.shared} ol")
    place.denied("run", place.run("rm -rf ol/a/d"))
    assert (place.shared / "a" / "d").is_dir()


def test_p4_a_link_of_a_file_operation_is_followed(place: Place) -> None:
    place.done("ln -s .git gl")
    hf = place.hf
    path = str(place.project / "gl" / "objects")
    place.denied("files", hf.start("--as", "bot", "files", "rm", "links", path, "-r"))
    assert (place.project / ".git" / "objects").is_dir()


def test_p4_a_link_inside_of_the_project_is_not_asked_about(place: Place) -> None:
    (place.project / "build" / "x").mkdir(parents=True)
    place.done("ln -s build ol; rm -rf ol/x")
    assert not (place.project / "build" / "x").exists()


def test_p4_an_approval_is_for_the_files_behind_the_links(place: Place) -> None:
    """The link is exchanged while the question waits."""
    place.done(f"ln -s {place.shared / 'a'} ol")
    held = place.run("rm -rf ol/d")
    question = place.question("run")
    (place.project / "ol").unlink()
    (place.project / "ol").symlink_to(place.shared / "b")
    approve(place.hf, question)
    _, err = held.communicate(timeout=DEADLINE_S)
    assert held.returncode == 255 and b"approv" in err, err
    assert (place.shared / "a" / "d").is_dir() and (place.shared / "b" / "d").is_dir()


def test_p4_a_link_that_the_run_exchanges_is_asked_about(place: Place) -> None:
    body = f'ln -sfn {place.shared / "b"} ol; command rm "$@"'
    (place.project / "on.sh").write_text(f"rm() {{ {body}; }}\n")
    place.done(f". ./on.sh; ln -s {place.shared / 'a'} ol")
    try:
        held = place.run("rm -rf ol/d")
        approve(place.hf, place.question("run"))
        place.denied("exec", held)
        assert (place.shared / "b" / "d").is_dir()
    finally:
        place.done("unset -f rm")


def test_as_an_ordinary_user(place: Place) -> None:
    passes_as_ordinary_user(__file__)
