"""The stored form of typed codes, between one host and the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.home import Home, codes

BOOT = "b1e55ed0-0000-4000-8000-000000000000"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(str(tmp_path / "hf"), str(tmp_path / "hf/config.toml"), True)
    homes.prepare(made)
    return made


def test_a_stored_code_is_there_until_it_is_dropped(home: Home) -> None:
    codes.keep(home, "4KQ7", b"p" * 32, BOOT)
    codes.keep(home, "M2XD", b"q" * 32, BOOT)
    assert (Path(home.run) / "4KQ7.code").stat().st_mode & 0o777 == 0o600
    assert codes.listing(home, BOOT) == {"4KQ7": b"p" * 32, "M2XD": b"q" * 32}
    assert codes.drop(home, "4KQ7") and codes.drop(home, "4KQ7")
    assert list(codes.listing(home, BOOT)) == ["M2XD"]


def test_codes_of_an_earlier_boot_are_void_and_removed(home: Home) -> None:
    codes.keep(home, "4KQ7", b"p" * 32, BOOT)
    assert codes.listing(home, "another") == {} and os.listdir(home.run) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"v":1}',
        b'{"boot":"%s","password":"xx","v":1}' % BOOT.encode(),
        b'{"boot":"%s","password":7,"v":1}' % BOOT.encode(),
        b"x" * 5000,
    ],
)
def test_an_unreadable_file_is_no_code(home: Home, content: bytes) -> None:
    path = Path(home.run) / "4KQ7.code"
    path.write_bytes(content)
    path.chmod(0o600)
    assert codes.listing(home, BOOT) == {} and not path.exists()


def test_a_code_file_that_others_could_read_is_ignored(home: Home) -> None:
    codes.keep(home, "4KQ7", b"p" * 32, BOOT)
    (Path(home.run) / "4KQ7.code").chmod(0o644)
    assert codes.listing(home, BOOT) == {} and os.listdir(home.run) == []
