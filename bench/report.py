"""Tables and JSON of a run:

medians over rounds; a ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.targets import (
    NEVER,
    RELAYED_TARGETS,
    TARGETS,
    Reached,
    Rounds,
    Verdict,
    judge,
    values_of,
)

# Metrics for which a ratio to the bare terminal makes sense
RATIOS = frozenset(("p10_us", "p50_us", "p90_us", "MBps", "ms"))
YARDSTICK = "raw"
RELAYED = "holdfast-relay"  # has its own targets


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == NEVER:
        return "never"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def table(title: str, tools: Sequence[str], rounds: Rounds) -> str:
    """Format one measure: a row per tool."""
    metrics: list[str] = []
    for one in rounds:
        for of_tool in one.values():
            metrics += [m for m in of_tool if m not in metrics]
    head = [h for m in metrics for h in ((m, "x raw", "from - to") if m in RATIOS else (m,))]
    lines = [
        f"### {title} ({len(rounds)} rounds)",
        "",
        f"| tool | {' | '.join(head)} |",
        "|---|" + "---:|" * len(head),
    ]
    for tool in tools:
        cells = [tool]
        for metric in metrics:
            values = values_of(rounds, tool, metric)
            cells.append(number(statistics.median(values)) if values else "-")
            if metric in RATIOS:
                ratios = values_of(rounds, tool, metric, YARDSTICK) if tool != YARDSTICK else []
                cells.append(number(statistics.median(ratios)) if ratios else "-")
                cells.append(f"{number(min(ratios))} - {number(max(ratios))}" if ratios else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(results: Mapping[str, Rounds], tool: str) -> list[Verdict]:
    return [
        judge(t, results[t.measure], tool)
        for t in (RELAYED_TARGETS if tool.startswith(RELAYED) else TARGETS)
        if t.measure in results
    ]


def verdict_table(found: Sequence[Verdict], tool: str) -> str:
    lines = [
        f"### {tool}: what was to be reached, and what was",
        "",
        "| figure | measured | from - to | must | aim | reached |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for v in found:
        t = v.target
        unit = f" x {t.against}" if t.against else ""
        sign = ">=" if t.at_least else "<="
        words = str(v.reached) + (f" ({', '.join(v.broken)} broken)" if v.broken else "")
        spread = f"{number(v.low)} - {number(v.high)}" if v.rounds > 1 else "-"
        measured = number(v.value) + (unit if v.value is not None else "")
        lines.append(
            f"| {t.words} | {measured} | {spread} | {sign} {number(t.must)}{unit} "
            f"| {sign} {number(t.aim)}{unit} | {words} |"
        )
    aim, must, no = (
        sum(v.reached is r for v in found) for r in (Reached.AIM, Reached.MUST, Reached.NO)
    )
    lines += ["", f"{aim} at the aim, {must} at what must be, {no} not reached."]
    return "\n".join(lines)


def markdown(
    before: Mapping[str, Any],
    tools: Sequence[str],
    results: Mapping[str, Rounds],
    judged: Sequence[str],
    options: Mapping[str, Any],
) -> str:
    parts = [
        "# Terminal-session tools side by side",
        "",
        f"{before['system']}, {before['cpus']} processors, Python {before['python']}, "
        f"load {before['load']} at the start. Bulk of {options['mb']:g} MB. "
        "Medians over rounds; `x raw` is the median of the ratios to a bare terminal of the same "
        "round, then the lowest and the highest of them: differences within that range are none.",
        "",
    ]
    for tool in judged:
        parts += [verdict_table(verdicts(results, tool), tool), ""]
    for name, rounds in results.items():
        parts += [table(name, tools, rounds), ""]
    return "\n".join(parts)


def as_json(
    before: Mapping[str, Any],
    tools: Sequence[str],
    results: Mapping[str, Rounds],
    judged: Sequence[str],
    options: Mapping[str, Any],
) -> str:
    """Each round's numbers (null: not within the limit), and the verdicts."""
    found = {tool: [plain_verdict(v) for v in verdicts(results, tool)] for tool in judged}
    return json.dumps(
        {
            "machine": before,
            "options": options,
            "tools": list(tools),
            "verdicts": found,
            "rounds": results,
        },
        indent=1,
    )


def plain_verdict(v: Verdict) -> dict[str, Any]:
    t = v.target
    return {
        "measure": t.measure,
        "metric": t.metric,
        "against": t.against,
        "must": t.must,
        "aim": t.aim,
        "value": None if v.value == NEVER else v.value,
        "rounds": v.rounds,
        "broken": list(v.broken),
        "reached": str(v.reached),
    }
