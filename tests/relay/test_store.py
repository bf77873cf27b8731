"""The store of a relay: durable, private, and never guessed at."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from holdfast.model import signing
from holdfast.model.errors import NotFound, Refused, Unavailable, Usage
from holdfast.model.limits import RELAY_ROUTE_KEPT_S
from holdfast.relay import admin, control
from holdfast.relay.events import Known
from holdfast.relay.store import Store

NOW = 1_800_000_000


def known(number: int, seen: int = NOW) -> Known:
    return Known(bytes([number]) * 32, "acme", "t1", 7 + number, (b"a" * 32, b"b" * 32), seen)


def test_routes_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "relay.db")
    store = Store(path)
    store.start()
    for n in range(3):
        store.save(known(n))
    store.save(known(0)._replace(generation=99, passes=()))
    store.forget(known(1).key)
    store.close()
    again = Store(path)
    assert sorted(again.routes(NOW)) == sorted(
        [known(0)._replace(generation=99, passes=()), known(2)]
    )
    assert again.routes(NOW + RELAY_ROUTE_KEPT_S + 1) == []
    again.close()


def test_tokens_are_kept_as_hashes(tmp_path: Path) -> None:
    data = str(tmp_path)
    token, digest = admin.make()
    made = control.ask(
        data, {"act": "token.new", "digest": digest.hex(), "tenant": "acme", "expires": None}
    )
    assert made["state"] == "valid" and made["id"] == digest.hex()[:12]
    with pytest.raises(Refused):
        control.ask(
            data, {"act": "token.new", "digest": digest.hex(), "tenant": "acme", "expires": None}
        )
    content = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    assert token.encode() not in content and digest in content
    assert [t["state"] for t in control.ask(data, {"act": "token.ls"})] == ["valid"]
    assert control.ask(data, {"act": "token.revoke", "id": made["id"][:4]})["state"] == "revoked"
    assert control.ask(data, {"act": "token.ls"})[0]["state"] == "revoked"
    for wrong in ("", "zzz", digest.hex()[:11] + "?"):
        with pytest.raises(NotFound):
            control.ask(data, {"act": "token.revoke", "id": wrong})


@pytest.mark.parametrize(
    "request_",
    (
        {"act": "token.new", "digest": "00", "tenant": "a"},
        {"act": "token.new", "digest": "00" * 32, "tenant": "a b"},
        {"act": "nothing"},
        {"act": "token.new", "digest": "00" * 32, "tenant": "a", "expires": "soon"},
        {"act": "admit", "key": "ed25519:x", "tenant": "a"},
        {},
    ),
)
def test_a_malformed_change_leaves_the_store_unchanged(
    tmp_path: Path, request_: dict[str, str]
) -> None:
    with pytest.raises(Usage):
        control.ask(str(tmp_path), request_)
    store = Store(control.database_of(str(tmp_path)))
    assert (
        store.at_once(lambda db: db.execute("SELECT * FROM tenants").fetchall()) == []
        and store.routes(NOW) == []
    )
    store.close()


def test_admitting_a_key_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    path = control.database_of(str(tmp_path))
    key = signing.public(b"k" * 32)
    store = Store(path)
    store.start()
    store.save(Known(key, "acme", "t1", 5, (b"a" * 32,), NOW))
    store.close()
    control.ask(str(tmp_path), {"act": "admit", "key": signing.show(key), "tenant": "acme"})
    store = Store(path)
    assert store.routes(NOW) == [Known(key, "acme", None, 5, (b"a" * 32,), NOW)]
    store.close()


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    path.write_bytes(b"this is something else, and it is precious" * 100)
    store = Store(str(path))
    assert store.put_aside is not None and Path(store.put_aside).read_bytes().startswith(
        b"this is something else"
    )
    assert store.at_once(admin.tokens) == []
    store.close()


def test_a_newer_release_is_not_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "relay.db")
    db = apsw.Connection(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(Unavailable, match="newer release"):
        Store(path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = Store(str(tmp_path / "relay.db"))
    with pytest.raises(Unavailable, match="another process"):
        Store(str(tmp_path / "relay.db"))
    first.close()
    assert (tmp_path / "relay.db").stat().st_mode & 0o077 == 0


def test_a_write_that_fails_is_repeated_later(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "relay.db"))
    store._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON routes BEGIN SELECT raise(ABORT, 'disk full'); END"
    )
    store.start()

    async def body() -> None:
        store.save(known(1))
        while not store.failures:
            await store.run(lambda db: None)
        await store.run(lambda db: db.execute("DROP TRIGGER full"))
        while await store.run(lambda db: db.execute("SELECT count(*) FROM routes").fetchall()) != [
            (1,)
        ]:
            pass
        with pytest.raises(Unavailable):
            await store.run(lambda db: db.execute("nonsense"))

    asyncio.run(body())
    store.close()
