"""A program that records acts until it is killed. Its effects are lines in a file.

    journal_writer.py DATABASE EFFECTS COUNT START

Each act is an intent, then its effect (a line), then the outcome; keys are posted in between. With
COUNT 0 the program only recovers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.core.record import record
from holdfast.host.storage.journal import Journal, Typist
from holdfast.host.storage.store import Store
from holdfast.testing.probes import arm_from
from tests.support.checkers.records import Scribe


def _lines(path: str) -> set[int]:
    return {int(line) for line in Path(path).read_text().splitlines()}


async def main(database: str, effects: str, count: int, start: int) -> None:
    store = Store(database)
    store.start()
    scribe = Scribe(b"writer")
    journal = Journal(store, scribe.private)
    done = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    applied = _lines(effects)

    def fate(intent: dict[str, Any]) -> str:
        return record.APPLIED if intent["number"] in applied else record.VOID

    await journal.recover(fate)
    actor = scribe.ann
    actor.number = start
    typist = Typist(scribe.session, 1, actor.name, actor.key, actor.modality, actor.client)
    for n in range(count):
        journal.keys(typist, actor.next())
        journal.keys(typist, actor.next())
        intent = await journal.intent(scribe.draft(actor, "intent", "command", b"act %d" % n))
        os.write(done, b"%d\n" % intent.fields["number"])
        journal.outcome(intent, record.APPLIED)
        if n % 3 == 0:
            await journal.settled()
    await journal.close()
    store.close()


if __name__ == "__main__":
    arm_from(os.environ.get("HOLDFAST_PROBE", ""))
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
