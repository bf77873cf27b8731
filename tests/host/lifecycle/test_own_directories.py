"""The files of an ended session are removed beside the event loop, however many they are (T7)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from holdfast.home import Home
from holdfast.host.lifecycle import prepare
from holdfast.host.lifecycle.contained import removal
from holdfast.host.lifecycle.contained.own_directories import OwnDirectories


def test_t7_many_files_of_an_ended_session_do_not_stall_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(str(tmp_path), str(tmp_path / "config.toml"), True)
    places = [tmp_path / "contained" / "gone", *(tmp_path / "run" / d / "gone" for d in "rs")]
    for place in places:
        place.mkdir(parents=True)
        for number in range(50):
            (place / str(number)).touch()
    kept = Path(prepare.host_only_directory(home, "alive"))
    threads, answered = list[str](), threading.Event()

    def remove(path: str) -> int:
        """Waits for the event loop, as a slow disk would let it wait."""
        threads.append(threading.current_thread().name)
        assert answered.wait(60), "the loop is blocked by the removal"
        return _remove(path)

    _remove = removal.remove
    monkeypatch.setattr(removal, "remove", remove)

    async def main() -> None:
        own = OwnDirectories(home, prepare.DIRECTORIES)
        assert own.stale({"alive"}) == ["gone"]
        removing = asyncio.create_task(own.remove_all(own.stale({"alive"})))
        await asyncio.sleep(0)
        answered.set()
        await removing
        assert own.stale({"alive"}) == []
        own.close()

    asyncio.run(main())
    assert threading.current_thread().name not in threads and len(threads) == 4
    assert not any(place.exists() for place in places) and os.path.isdir(kept)
