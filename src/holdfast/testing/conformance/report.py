"""Cases, results, and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar

S = TypeVar("S")
Verdict = Literal["passed", "failed", "skipped"]
WAIT_S: Final = 60.0  # for an answer, however slow the machine is; only a hang takes this long


class Failed(Exception):
    """The program under test broke a rule; the text says which."""


class Skipped(Exception):
    """The program under test does not offer this."""


class Case(NamedTuple, Generic[S]):
    """`stage` of `run` is the other side: a client program with its host, or a connection."""

    name: str
    clause: str
    says: str
    run: Callable[[S], None]


@dataclass(frozen=True)
class Result:
    case: str
    clause: str
    says: str
    verdict: Verdict
    detail: str
    seconds: float


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted or type(found) is not type(wanted):
        raise Failed(f"{what} is {_short(found)}, expected {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def chosen(cases: Sequence[Case[S]], wanted: Sequence[str]) -> list[Case[S]]:
    """The cases with a name or clause in this list; all if none is."""
    return [one for one in cases if not wanted or {one.name, one.clause} & set(wanted)]


def judged(case: Case[S], run: Callable[[], None]) -> Result:
    """Runs a case. Every exception is a failure of the program under test, or of the suite."""
    began, verdict, detail = time.monotonic(), "passed", ""
    try:
        run()
    except Skipped as e:
        verdict, detail = "skipped", str(e)
    except Failed as e:
        verdict, detail = "failed", str(e)
    except Exception as e:
        verdict, detail = "failed", f"{type(e).__name__}: {e}"
    took = round(time.monotonic() - began, 3)
    return Result(case.name, case.clause, case.says, verdict, detail, took)  # type: ignore[arg-type]


def line(result: Result) -> str:
    tail = f": {result.detail}" if result.detail else ""
    return f"{result.verdict:<8}{result.clause:<4}{result.case}  {result.says}{tail}"


def summary(results: Iterable[Result]) -> str:
    found = list(results)
    counts = (
        f"{sum(one.verdict == verdict for one in found)} {verdict}"
        for verdict in ("passed", "failed", "skipped")
    )
    return ", ".join(counts)


def as_json(subject: str, results: Sequence[Result]) -> str:
    body = {"subject": subject, "results": [asdict(one) for one in results]}
    return json.dumps(body, indent=1)
