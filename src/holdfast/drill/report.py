"""Runs the checks in sequence, and renders the results."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Final, Literal

from holdfast.drill.checks import CHECKS, Check
from holdfast.drill.stage import Broken, NotHere, Stage
from holdfast.model.errors import HoldfastError, Usage

Verdict = Literal["held", "broken", "not_live", "not_here"]
CHECK_S: Final = 120.0  # for a check, however slow the machine is
ENDS: Final = (signal.SIGTERM, signal.SIGHUP)  # end the drill; nohup's choice counts


@dataclass(frozen=True)
class Result:
    clause: str
    mode: str
    name: str
    verdict: Verdict
    evidence: str
    seconds: float = 0.0


def chosen(wanted: Sequence[str]) -> list[Check]:
    """The checks whose clause, mode or function is named; all if none.

    Raises Usage if a word names no check.
    """
    known = {word for check in CHECKS for word in (*check[:2], check.run.__name__)}
    if unknown := set(wanted) - known:
        clauses = sorted({check.clause for check in CHECKS})
        raise Usage(f"no check for {' '.join(sorted(unknown))}", f"clauses: {', '.join(clauses)}")
    return [
        check
        for check in CHECKS
        if not wanted or {check.clause, check.mode, check.run.__name__} & set(wanted)
    ]


async def drill(
    wanted: Sequence[str], told: Callable[[Result], None], live: bool = False
) -> list[Result]:
    """Runs the chosen checks on one throw-away installation, or on the real one (`live`).

    SIGTERM and SIGHUP cancel the drill, which removes its installation then.
    """
    return await _run(chosen(wanted), told, live)


async def _run(checks: Sequence[Check], told: Callable[[Result], None], live: bool) -> list[Result]:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    ends = [one for one in ENDS if signal.getsignal(one) != signal.SIG_IGN]
    results, stage = list[Result](), Stage(live)
    for number in ends:
        loop.add_signal_handler(number, task.cancel)
    try:
        for check in checks:
            if live and check.not_live:
                results.append(Result(*check[:3], "not_live", check.not_live))
                told(results[-1])
                continue
            began = time.monotonic()
            verdict: Verdict = "held"
            try:
                async with asyncio.timeout(CHECK_S):
                    evidence = await check.run(stage)
            except NotHere as e:
                verdict, evidence = "not_here", str(e)
            except (Broken, HoldfastError, TimeoutError, OSError) as e:
                verdict, evidence = "broken", str(e) or f"no end within {CHECK_S:g} s"
            results.append(
                Result(
                    check.clause,
                    check.mode,
                    check.name,
                    verdict,
                    evidence,
                    round(time.monotonic() - began, 2),
                )
            )
            told(results[-1])
    finally:
        for number in ends:
            loop.add_signal_handler(number, bool)  # nothing cuts the cleaning
        await stage.close()
    return results


def line(one: Result) -> str:
    mark = "BROKEN" if one.verdict == "broken" else one.verdict.replace("_", " ")
    took = f"{one.seconds:.1f} s" if one.seconds else ""
    return f"{mark:9} {one.clause:3} {one.name:52} {took:>7}  {one.evidence}".rstrip()


def as_json(results: Sequence[Result]) -> dict[str, object]:
    return {"results": [asdict(one) for one in results]}


def as_html(results: Sequence[Result]) -> str:
    rows = "\n".join(
        f'<tr class="{one.verdict}"><td>{escape(one.clause)}<td>{escape(one.name)}'
        f"<td>{escape(one.mode)}<td>{one.verdict.replace('_', ' ')}<td>{one.seconds:.1f}"
        f"<td>{escape(one.evidence)}"
        for one in results
    )
    return PAGE.format(rows=rows)


PAGE: Final = """<!doctype html>
<meta charset="utf-8"><title>holdfast drill</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: left }}
.held td:nth-child(4) {{ color: #06762f }}
.broken td:nth-child(4) {{ color: #b3001b; font-weight: bold }}
.not_live, .not_here {{ color: #777 }}
</style>
<h1>holdfast drill</h1>
<table><tr><th>clause<th>promise<th>mode<th>verdict<th>seconds<th>evidence
{rows}
</table>
"""
