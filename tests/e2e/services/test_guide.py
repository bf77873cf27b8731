"""The commands of docs/guides/services.md, as printed (T3, M)."""

from __future__ import annotations

import json
import shlex
import subprocess

from tests.support.commands import guide
from tests.support.commands.http_client import start
from tests.support.installation import Installation

PRINTED = "http://127.0.0.1:8480"


def blocks(section: str) -> list[str]:
    return guide.blocks(guide.section("services.md", section))


def test_m_the_guide_for_services_works_as_printed(hf: Installation) -> None:
    hf.ready("build")
    people, token, serve = blocks("Serve")
    for line in people.splitlines():
        hf.ok(*shlex.split(line)[1:])
    words, file = shlex.split(token)[1:-2], hf.user / "ci.token"
    file.write_text(hf.ok(*words).out)
    assert shlex.split(serve)[1:] == ["http", "--as", "web", "--listen", PRINTED[7:]]
    server = start(hf)
    script = "set -e\n" + "\n".join(blocks("Call"))
    done = subprocess.run(
        ["bash", "-c", script.replace(PRINTED, server.url)],
        cwd=hf.user,
        env=hf.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    first, again, view = found[:3]
    assert first["text"] == again["text"] == "built\n" and first["ref"] == again["ref"]
    assert "built" in view["lines"]
    told = [line[6:] for line in done.stdout.splitlines() if line.startswith("data: ")]
    streamed = [one["text"] for one in map(json.loads, told) if "offset" in one]
    assert "".join(streamed) == "1\n2\n3\n" * 2, done.stdout
    assert "web (http.ci" in hf.quick("log", "build")
    (remove,) = blocks("Take the access back")
    hf.ok(*shlex.split(remove)[1:])
    assert server.ask("ls", token=file.read_text().split()[0]).status == 401
