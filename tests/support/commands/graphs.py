"""Questions to `holdfast graph`."""

from __future__ import annotations

import json
from typing import Any

from tests.support.installation import Installation, eventually
from tests.support.kernel import silent_about_processes


def graph(hf: Installation, name: str, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(hf.ok("graph", name, "--json", *args).out)
    return found


def process(hf: Installation, name: str, words: str) -> dict[str, Any]:
    """The process whose command line has these words, once it runs."""

    def look() -> dict[str, Any] | None:
        return next(
            (
                p
                for p in graph(hf, name)["processes"]
                if words in " ".join(p["argv"]) and not p["comm"].startswith("hf-")
            ),
            None,
        )

    found = eventually(look, f"a process with {words}")
    assert found is not None
    return found


def forks_are_reported() -> bool:
    """Whether the kernel reports forks here: without that, only inherited state is known."""
    return not silent_about_processes()
