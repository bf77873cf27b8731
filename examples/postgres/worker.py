"""Pays all invoices of a database, each once, whatever happens to the session it runs in.

    holdfast new payments --contained --net host -- python3 worker.py 'host=127.0.0.1 dbname=shop'

The session may be checkpointed, restored on another machine, or forked while this program works.
Then its memory is of an earlier moment, and its connection is gone. Three lines keep the books
right: the token and the key that go into each payment, and the function `pay` of schema.sql, which
checks both in the transaction of the payment.

`--step` waits for Enter before each payment. It needs psycopg 3, and `holdfast.app` or a copy of
that file beside this one (`app.py`).
"""

from __future__ import annotations

import sys
import time
from typing import Any

import psycopg

try:
    from holdfast import app
except ImportError:  # not installed here: the copy
    import app  # type: ignore[import-not-found, no-redef]

STALE = "HF001"  # the error of schema.sql for an old incarnation
RETRY_S = 0.2
PATIENCE_S = 60.0


class Books:
    """The database. After a lost connection the same operation is sent again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._line: psycopg.Connection | None = None

    def invoices(self) -> list[tuple[int, str]]:
        return [(int(one), str(amount)) for one, amount in self._ask(
            "select id, amount::text from invoice order by id"
        )]  # fmt: skip

    def pay(self, invoice: int, amount: str) -> bool:
        """Pay an invoice; False if it was paid before."""
        key = app.idempotency_key(f"pay invoice {invoice}, {amount}")
        token = app.token()  # read again for each write, never kept
        words = (token.session, token.epoch, key, invoice, amount)
        return bool(self._ask("select pay(%s, %s, %s, %s, %s)", *words)[0][0])

    def _ask(self, text: str, *words: object) -> list[tuple[Any, ...]]:
        """One transaction. Sending it twice is safe: the key makes the second one do nothing."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._line is None:
                    self._line = psycopg.connect(self._address, autocommit=True)
                return list(self._line.execute(text, words).fetchall())
            except psycopg.OperationalError as e:  # the connection: it did not survive
                print(f"reconnecting: {str(e).splitlines()[0]}", flush=True)
                self._line = None
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)


def main(address: str, *options: str) -> int:
    books, began = Books(address), app.token()
    for invoice, amount in books.invoices():
        if "--step" in options:
            input()
        if app.changed_since(began):
            now = app.token()
            print(f"epoch {now.epoch} now; the memory of this program is older", flush=True)
            began = now
        try:
            paid = books.pay(invoice, amount)
        except psycopg.Error as e:
            if e.sqlstate != STALE:
                raise
            print(f"this incarnation is over: {str(e).splitlines()[0]}", flush=True)
            return 1
        print(f"invoice {invoice}: {'paid' if paid else 'was paid before'}", flush=True)
    print("all invoices are paid", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
