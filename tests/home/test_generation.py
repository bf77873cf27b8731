from __future__ import annotations

from pathlib import Path

from holdfast.home import Home
from holdfast.home.generation import following


def test_a_generation_only_grows_with_any_clock(tmp_path: Path) -> None:
    home = Home(str(tmp_path), str(tmp_path), True)
    assert following(home, 5000) == 5000
    assert following(home, 5000) == 5001
    assert following(home, 100) == 5002
    assert following(home, 9000) == 9000


def test_without_a_usable_file_the_generation_is_the_time(tmp_path: Path) -> None:
    home = Home(str(tmp_path), str(tmp_path), True)
    for damage in (b"", b"-7", b"not a number", b"9" * 400, b"9223372036854775807"):
        (tmp_path / "generation").write_bytes(damage)
        assert following(home, 5000) == 5000
    assert following(Home(str(tmp_path / "nowhere"), "", True), 5000) == 5000
