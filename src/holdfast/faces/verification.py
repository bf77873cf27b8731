"""log verify: the verdict about a record or an export, with the receipts that this home kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from holdfast.faces.cli.output import color, put_json
from holdfast.model.errors import Contradicted, NotFound, Unavailable, Usage
from holdfast.model.printable import printable

if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.core.record.examine import Fact, Finding
    from holdfast.home import Home
    from holdfast.model.jsontext import Json

SPREAD_BYTES = 2 << 20  # a larger export is verified by several processes
CHECKED_MAX = 32  # receipts that are compared when a record is shown
AHEAD = 4  # pieces in progress for each process
RED, YELLOW = "\x1b[31m", "\x1b[33m"

Pull = Callable[["Namespace", str, IO[bytes]], "Json"]  # writes the export of a session


def verify(args: Namespace, what: str, pull: Pull, home: Home) -> int:
    """Verify an export, or the record of a session that `pull` fetches.

    A fetched record must contain every entry with a receipt from before the request. A file may be
    older than some receipts: those that the machine signed after the export are left out.
    """
    from tempfile import TemporaryFile

    from holdfast.home import receipts

    kept = receipts.snapshot(home)

    if os.path.isfile(what):
        try:
            with open(what, "rb") as file:
                return _judge(args, file, kept, dated=True)
        except BrokenPipeError:
            raise  # an error of the output, not of the file
        except OSError as e:
            raise Unavailable(f"cannot read {what}: {e.strerror}", "check its permissions") from e
    if os.sep in what:
        raise NotFound(f"there is no file {what}", "give an export, or a session")
    with TemporaryFile() as file:
        pull(args, what, file)
        file.seek(0)
        return _judge(args, file, kept, dated=False)


def _judge(
    args: Namespace, file: IO[bytes], receipts: Mapping[str, list[bytes]], dated: bool
) -> int:
    from holdfast.core.record import audit
    from holdfast.core.record.examine import read_signed

    kept: list[bytes] = []
    if args.kept:
        try:
            with open(args.kept, "rb") as other:
                kept = list(other)
        except OSError as e:
            raise Usage(f"cannot read {args.kept}: {e.strerror}") from e
    large = os.fstat(file.fileno()).st_size > SPREAD_BYTES
    try:
        header: Json = read_signed(file.readline(), None)[1]
    except ValueError:
        header = {}
    own = _receipts(receipts, header, dated) if header else []
    file.seek(0)
    findings = audit.verify(
        file, [*kept, *own], args.machine, spread=spread if large else audit.one_by_one
    )
    bad = audit.broken(findings)
    if args.json:
        put_json(
            {
                "ok": not bad,
                "session": header.get("session"),
                "machine": header.get("machine"),
                "first": header.get("first"),
                "last": header.get("last"),
                "receipts": len(own),
                "findings": [f._asdict() for f in findings],
            }
        )
        return 1 if bad else 0
    for line in findings_shown(findings, color()):
        print(line)
    if bad:
        print("BROKEN: this is not what was recorded")
        return 1
    print(
        f"nothing is broken: entries {header['first']} to {header['last']} "
        f"of session {header['session']}, machine {header['machine']}"
        + (f"\n  {len(own)} receipts that were kept here agree" if own else "")
        + (
            ""
            if args.machine
            else "\n  (compare that key with the machine's own, or give it with --machine)"
        )
    )
    return 0


def _receipts(kept: Mapping[str, list[bytes]], header: Json, dated: bool) -> Sequence[bytes]:
    """The receipts of clients of this home that the record must agree with."""
    from holdfast.home import receipts

    until = header["time"] if dated else None
    return receipts.of(kept, header["machine"], header["session"], header["first"], until)


def check_shown(
    kept: Mapping[str, list[bytes]], machine: str, session: str, entries: Sequence[Json]
) -> None:
    """Raise Contradicted if the newest entries of a record do not extend the newest receipts."""
    from holdfast.core.record.audit import receipt_name
    from holdfast.core.record.examine import read_signed
    from holdfast.home import receipts

    hashes = {e["seq"]: e["hash"] for e in entries}
    newest = max(hashes, default=0)
    for line in receipts.of(kept, machine, session)[-CHECKED_MAX:]:
        try:
            kind, head = read_signed(line, machine)
        except ValueError:
            continue
        if head["seq"] > newest or hashes.get(head["seq"], head["hash"]) != head["hash"]:
            what = f"{receipt_name(kind, head)}, of entry {head['seq']}"
            raise Contradicted(f"the record does not extend {what}: it was cut off or rewritten")


def findings_shown(findings: list[Finding], colored: bool) -> Iterator[str]:
    for f in findings:
        level = f"{RED if f.level == 'broken' else YELLOW}{f.level}\x1b[0m" if colored else f.level
        yield f"{level} {f.code}{'' if f.seq is None else f' at {f.seq}'}: {printable(f.text)}"


def spread(
    work: Callable[[list[bytes], str], list[Fact | Finding]],
    chunks: Iterable[list[bytes]],
    machine: str,
) -> Iterator[list[Fact | Finding]]:
    """Verify in as many processes as there are processors, in order, with bounded work ahead."""
    from collections import deque
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing import get_context

    count = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        under_way: deque[Future[list[Fact | Finding]]] = deque()
        for chunk in chunks:
            under_way.append(pool.submit(work, chunk, machine))
            if len(under_way) >= AHEAD * count:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
