"""The worker of examples/postgres against a real PostgreSQL, over a loss and a restore (R4).

The database refuses the write of the lost incarnation that arrives late, and takes no payment
twice, also not from two branches.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import app
from tests.support.installation import Installation, eventually, installation
from tests.support.ordinary_user import needs
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.postgres import Postgres, postgres

EXAMPLE = Path(__file__).parents[3] / "examples/postgres"
PYTHON = "/usr/bin/python3"
INVOICES = 6


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    needs("psql")
    with postgres() as made:
        made.sql((EXAMPLE / "schema.sql").read_text())
        yield made


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory, database: Postgres) -> Iterator[Installation]:
    psycopg = pytest.importorskip("psycopg")
    typing_extensions = pytest.importorskip("typing_extensions")
    with installation(tmp_path_factory.mktemp("home")) as made:
        shutil.copy(EXAMPLE / "worker.py", made.user)
        shutil.copy(app.__file__, made.user)
        shutil.copytree(Path(psycopg.__file__).parent, made.user / "psycopg")
        shutil.copy(typing_extensions.__file__, made.user)
        yield made


@pytest.fixture(autouse=True)
def empty(database: Postgres) -> None:
    database.sql(
        "truncate invoice, payment, fence;"
        f"insert into invoice select n, 10 * n from generate_series(1, {INVOICES}) n"
    )


def start(hf: Installation, database: Postgres, name: str) -> str:
    """A session with the worker, which waits for Enter before each payment."""
    argv = (PYTHON, "worker.py", database.address, "--step")
    made = hf.new(name, "--contained", "--net", "host", "--", *argv)
    return str(made["id"])


def pay(hf: Installation, name: str, invoice: int, how: str = "paid") -> None:
    hf.quick("send", name, "", "--key", "Enter")
    hf.wait(name, f"text:invoice {invoice}: {how}")


def payments(database: Postgres) -> dict[int, list[int]]:
    """The epochs of the payments of each invoice."""
    found = dict[int, list[int]]()
    for invoice, epoch in database.sql("select invoice, epoch from payment order by invoice"):
        found.setdefault(int(invoice), []).append(int(epoch))
    return found


def test_r4_nothing_is_paid_twice_and_a_stale_write_is_refused(
    hf: Installation, database: Postgres
) -> None:
    criu()
    session = start(hf, database, "worker")
    pay(hf, "worker", 1)
    pay(hf, "worker", 2)
    hf.ok("checkpoint", "worker")
    pay(hf, "worker", 3)  # the original goes on
    pay(hf, "worker", 4)
    # The payment of invoice 5 is on its way: the database has it in the socket, and stands still.
    text = "select pid from pg_stat_activity where query like '%pay(%' and state = 'idle'"
    [[backend]] = database.sql(text)
    os.kill(int(backend), signal.SIGSTOP)
    try:
        hf.quick("send", "worker", "", "--key", "Enter")
        eventually(lambda: waiting(int(backend)) or None, "the statement to arrive")
        os.kill(hf.get("worker")["keeper"], signal.SIGKILL)
        eventually(lambda: hf.get(session)["state"] == "ended" or None, "the loss")
        said = hf.ok("restore", "worker", "--json").json
        [lost] = said["connections"]
        assert lost["remote"] == f"127.0.0.1:{database.port}" and lost["program"] == "python3"
        pay(hf, "worker", 3, "was paid before")
        hf.wait("worker", "text:epoch 2 now; the memory of this program is older")
        pay(hf, "worker", 4, "was paid before")
        pay(hf, "worker", 5)
    finally:
        os.kill(int(backend), signal.SIGCONT)
    refused = f"stale token: session {session} has epoch 2, and this write has 1"
    eventually(lambda: refused in database.log or None, "the refusal of the late write")
    hf.quick("send", "worker", "", "--key", "Enter")
    eventually(lambda: hf.get(session)["state"] == "ended" or None, "the end of the program")
    last = hf.ok("view", session[:6]).out
    assert "invoice 6: paid" in last and "all invoices are paid" in last
    assert payments(database) == {1: [1], 2: [1], 3: [1], 4: [1], 5: [2], 6: [2]}
    with pytest.raises(RuntimeError, match="stale token"):
        database.sql(f"select pay('{session}', 1, 'other', 7, 1)")
    assert 7 not in payments(database)


def test_r5_two_branches_pay_each_invoice_once(hf: Installation, database: Postgres) -> None:
    criu()
    start(hf, database, "base")
    pay(hf, "base", 1)
    made = hf.ok("fork", "base", "-n", "2", "--json").json["branches"]
    one, other = (str(branch["id"]) for branch in made)
    pay(hf, one, 2)
    pay(hf, other, 2, "was paid before")
    pay(hf, other, 3)
    pay(hf, "base", 2, "was paid before")
    pay(hf, one, 3, "was paid before")
    lost = [e for e in hf.ok("events", "--json").records if e["event"] == "connection.lost"]
    told = {e["session"]: e for e in lost if e["kind"] == "closed_by_fork"}
    assert told.keys() == {one, other}, "the base keeps its connection"
    assert payments(database) == {1: [1], 2: [1], 3: [1]}
    hf.end("base")


def waiting(backend: int) -> int:
    """Bytes that the stopped backend has not read from its connection."""
    sockets = {os.readlink(one) for one in Path(f"/proc/{backend}/fd").iterdir()}
    rows = [one.split() for one in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return max(
        (int(row[4].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in sockets),
        default=0,
    )
