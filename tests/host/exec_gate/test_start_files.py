"""The author of a shell's start files (P3)."""

from __future__ import annotations

import pytest

from holdfast.core.originators.originators import UNKNOWN, Shaped
from holdfast.host.exec_gate.start_files import author

KINDS = {"ann": "human", "bob": "human", "bot": "agent", "web": "service"}
RC, PROFILE = "/home/ann/.bashrc", "/home/ann/.profile"


def wrote(who: str, file: str = RC, sure: bool = True) -> Shaped:
    return Shaped("file", file, who, 1, sure)


@pytest.mark.parametrize(
    ("maker", "files", "found", "expected"),
    [
        ("ann", [], [], None),
        ("ann", [RC], [], None),
        ("ann", [RC], [wrote("bob")], None),
        ("ann", [RC], [wrote(UNKNOWN)], None),
        ("ann", [RC], [wrote("bot")], "bot"),
        ("ann", [RC], [wrote("bob"), wrote("web", sure=False)], "web"),
        ("ann", [RC, PROFILE], [wrote("bot", PROFILE)], "bot"),
        ("ann", [RC], [wrote("shell")], "shell"),
        ("bot", [], [], "bot"),
        ("bot", [RC], [], "bot"),
        ("bot", [RC], [wrote(UNKNOWN)], "bot"),
        ("bot", [RC], [wrote("ann")], None),
        ("bot", [RC], [wrote("ann"), wrote(UNKNOWN)], "bot"),
        ("bot", [RC, PROFILE], [wrote("ann")], "bot"),
        ("bot", [RC, PROFILE], [wrote("ann"), wrote("bob", PROFILE)], None),
        ("bot", [RC], [wrote("ann"), wrote("web")], "web"),
        ("gone", [RC], [], "gone"),
    ],
)
def test_p3_the_author_of_start_files(
    maker: str, files: list[str], found: list[Shaped], expected: str | None
) -> None:
    assert author(maker, files, found, KINDS.get) == expected
