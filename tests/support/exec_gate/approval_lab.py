"""A contained session in which an agent works, and a person who is asked about its deletes."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.support.commands.approving import approve, free, waiting
from tests.support.installation import Installation, eventually

POLICY = """version = 1
extends = "default"
[[rule]]
name = "agents delete with approval"
verdict = "ask"
because = "it deletes"
by = ["human"]
who = { kind = ["agent"] }
when = { command = ["rm", "git clean"] }
"""


class Lab:
    """A contained session that an agent works in, and the directory of its work."""

    def __init__(self, hf: Installation, shell: str) -> None:
        self.hf, self.name, self.place = hf, f"lab-{shell}", hf.user / f"work-{shell}"
        self.place.mkdir()
        hf.new(self.name, "--contained", "--cwd", str(self.place), "--", shell)
        self.clean()

    def clean(self) -> None:
        for name in ("go", "stopped", "said"):
            (self.place / name).unlink(missing_ok=True)
        for name in ("scratch", "victim"):
            (self.place / name).mkdir(exist_ok=True)
            (self.place / name / "file").touch()
        free(self.hf, self.name)

    def run(self, text: str) -> subprocess.Popen[bytes]:
        return self.hf.start("--as", "bot", "run", self.name, "--", text)

    def done(self, text: str) -> str:
        found: str = self.hf.ok("--as", "bot", "run", self.name, "--", text).out
        return found

    def question(self) -> dict[str, Any]:
        def one() -> dict[str, Any] | None:
            return next(
                (q for q in waiting(self.hf) if q["name"] == self.name and q["state"] == "waiting"),
                None,
            )

        return eventually(one, "the question")

    def left(self) -> list[str]:
        return [name for name in ("scratch", "victim") if (self.place / name).exists()]

    def exec_question(self) -> dict[str, Any]:
        """The question about a program that the approval of the text does not cover."""

        def one() -> dict[str, Any] | None:
            return next(
                (q for q in waiting(self.hf) if q["name"] == self.name and q["act"] == "exec"), None
            )

        return eventually(one, "a question about a program")

    def approved(self, text: str) -> subprocess.Popen[bytes]:
        """Run a text that is asked about, and approve it."""
        held = self.run(text)
        question = self.question()
        assert question["act"] == "run" and question["text"] == text
        approve(self.hf, question)
        return held
