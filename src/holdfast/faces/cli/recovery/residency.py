"""reap, drain."""

from __future__ import annotations

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import HOLD, link
from holdfast.model.errors import Impossible, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.model.jsontext import Json

NOTICE_S = 60
OVER = "the drain is over: sessions are admitted again, and saved ones come back on attach"
SILENT_S = 3600.0  # as host/residency/costs.py counts idle sessions
GRACE_S = 30.0  # beyond the notice: for the answer
CHOICES = ("default", "never", "evict", "end")
SERVICES = ("user", "system")

reap_parser = usage(f"""
    [SESSION]  without a session: the limits, and what happens to which session next
    choice=[CHOICE]  default, never (it stays in memory), evict (it is never ended) or end (it is
        ended if it cannot be saved)
    --hold S  {HOLD}
    --json
""")


def reap(args: Namespace) -> int:
    from holdfast.faces.cli.output import clean, put

    if args.session is None:
        found = link(args).request("reaper")
        return put(args, found, clean_lines(found))
    if args.choice not in CHOICES:
        raise Usage(f"reap needs a choice: {', '.join(CHOICES)}", "`holdfast reap work never`")
    said = link(args).request("reap", session=args.session, choice=args.choice, hold=args.hold)
    return put(args, said, clean(f"{said['name']}: {_MEANS[said['choice']]}"))


_MEANS = {
    "default": "the limits of the configuration apply",
    "never": "it stays in memory",
    "evict": "it is saved to disk when it is idle, and never ended",
    "end": "it is saved when it is idle, or ended if it cannot be saved",
}


def clean_lines(found: Json) -> str:
    from holdfast.faces.cli.output import clean, table

    rows = [
        (one["name"], one["choice"], _duration(one["idle_s"]), clean(_next(one)))
        for one in found["sessions"]
    ]
    return "\n".join((_limits(found), table(("SESSION", "CHOICE", "IDLE", "NEXT"), rows)))


def _duration(seconds: float) -> str:
    from holdfast.faces.cli.output import duration

    return duration(seconds)


def _next(one: Json) -> str:
    import time

    if "at" in one:
        at = time.strftime("%H:%M:%S", time.localtime(one["at"]))
        return f"leaves the memory at {at}: {one['why']}"
    if "left" in one:
        return f"stays: {one['left']}"
    return f"stays: {one['safe']}" if one["safe"] else "-"


def _limits(found: Json) -> str:
    from holdfast.model import sizes

    if not found["on"]:
        keys = "reaper.idle, reaper.memory or reaper.count"
        return f"the reaper is off; {keys} in the configuration switches it on"
    policy = found["policy"]
    parts = [f"idle for {_duration(policy['idle_s'])}"] if policy["idle_s"] else []
    parts += [f"more than {sizes.show(policy['memory'])} in all"] if policy["memory"] else []
    parts += [f"more than {policy['sessions']} sessions"] if policy["sessions"] else []
    then = "ended if it cannot be saved" if policy["action"] == "end" else "saved, or left"
    return f"limits: {', '.join(parts)}; an idle session beyond them is {then}"


# ---------------------------------------------------------------- what to type next

_NEXT = {
    "checkpointed": "is on the disk: `holdfast restore NAME` brings it back",
    "restoring": "is being restored: `holdfast attach NAME` waits for it",
    "halted": "is halted: `holdfast resume NAME` lets it go on",
    "fenced": "stands still without its lease: `holdfast lease show NAME` says for how long",
    "moved": "is not here any more: REASON; `holdfast attach NAME` goes there",
    "copied": "is REASON: `holdfast lease show NAME` says how to take it over",
}


def explained(table: str, sessions: list[Json]) -> str:
    """The table, and for each session in a special state what to type next."""
    from holdfast.faces.cli.output import clean

    lines = []
    for one in sessions:
        says = _NEXT.get(one["state"], "")
        if waits_for_restore(one):
            says = "was lost: `holdfast restore NAME` brings it back from its checkpoint"
        if says:
            reason = str(one.get("reason") or "").removeprefix("fenced: ")
            says = says.replace("NAME", one["name"]).replace("REASON", reason)
            lines.append(clean(f"{one['name']} {says}"))
        if "arrived" in one:
            from holdfast.faces.cli.recovery.move import copy_line

            lines += [clean(f"{one['name']}: {copy_line(came)}") for came in one["arrived"]]
    return "\n".join([table, *lines])


# ---------------------------------------------------------------- on the disk


def waits_for_restore(session: Json) -> bool:
    """Whether a session was lost and has a checkpoint."""
    return session["state"] == "ended" and bool(session.get("on_disk"))


def was_stopped(session: Json) -> bool:
    """Whether an operator saved a session with --stop: only `restore` brings it back."""
    by = (session.get("on_disk") or {}).get("by")
    return session["state"] == "checkpointed" and by != "host"


def saved(session: Json) -> str:
    """The state of a session with a checkpoint to come back from; empty without one."""
    import time

    from holdfast.faces.cli import output

    if not (disk := session.get("on_disk")):
        return ""
    state = "lost, can be restored" if waits_for_restore(session) else str(session["state"])
    age = output.duration(time.time() - disk["at"])
    return f"{state} ({output.amount(disk['bytes'])}, {age} ago)"


# ---------------------------------------------------------------- cost


def costs(sessions: list[Json]) -> str:
    """The cost of each session, the largest first, and the sum of the idle sessions."""
    import time

    from holdfast.faces.cli import output

    known = sorted((s for s in sessions if "cost" in s), key=lambda s: -s["cost"]["memory"])
    now, idle, rows = time.time(), [], []
    for s in known:
        cost = s["cost"]
        silent = s["idle_s"] is not None and s["idle_s"] >= SILENT_S and not s["operators"]
        if silent and cost["memory"]:
            idle.append(cost["memory"])
        rows.append(
            (
                s["name"],
                s["state"],
                *(output.amount(cost[name]) for name in ("memory", "swap")),
                output.duration(cost["cpu_s"]),
                output.amount(cost["disk"]),
                output.duration(now - cost["since"]) if cost["memory"] else "-",
                output.duration(s["idle_s"]),
                cost["maker"] or "-",
            )
        )
    head = ("NAME", "STATE", "MEMORY", "SWAP", "CPU", "DISK", "RESIDENT", "IDLE", "MAKER")
    whole = output.amount(sum(s["cost"]["memory"] for s in known))
    total = f"{len(known)} sessions pin {whole}"
    total += (
        f"; {len(idle)} of them were silent and detached for an hour: {output.amount(sum(idle))}"
    )
    return f"{output.table(head, rows)}\n{total}"


# ---------------------------------------------------------------- drain


drain_parser = usage(f"""
    --notice D  save every session within this time, like 90s or 5m (default: 60s)
    --to MACHINE  move the sessions to this machine instead
    --cancel  end the drain: new sessions are admitted again, saved ones come back on attach
    --on-shutdown user|system  for a unit of systemd: drain only if this manager shuts down
    --hold S  {HOLD}
    --json
""")


def drain(args: Namespace) -> int:
    from holdfast.faces.cli.output import put_json
    from holdfast.faces.cli.recovery.progress import Progress, carried_out

    if args.on_shutdown is not None and not _shuts_down(args.on_shutdown):
        print("the machine does not shut down: nothing to drain")
        return 0
    connection = link(args)
    if args.cancel:
        said = connection.request("drain", cancel=True, hold=args.hold)
        put_json(said) if args.json else print(OVER)
        return 0
    notice = _notice(args.notice)

    to: Json = {"to": args.to} if args.to else {}
    said = carried_out(
        connection,
        "drain",
        Progress("draining", "", not args.json),
        "`holdfast ls` shows which sessions are on the disk",
        wait_s=notice + GRACE_S,
        notice=notice,
        hold=args.hold,
        **to,
    )
    put_json(said) if args.json else print(_result(said))
    return Impossible.exit_code if said["left"] else 0


def _notice(text: str | None) -> int:
    from holdfast.model import durations

    try:
        return NOTICE_S if text is None else durations.read(text)
    except ValueError as e:
        raise Usage(f"--notice {text!a} is no length of time", "like 90s or 5m") from e


def _result(said: Json) -> str:
    from holdfast.faces.cli.output import clean

    lines = [
        f"{said['saved']} saved ({_size(said['bytes'])}) in {said['took_s']:.1f} s, "
        f"{said['left']} left; new sessions are refused until `holdfast drain --cancel` or the "
        "next start of the host"
    ]
    for one in said["sessions"]:
        if not one["saved"]:
            lines.append(clean(f"  not saved: {one['name']}: {one['why']}"))
        elif "machine" in one:
            lines.append(clean(f"  {one['name']} is on {one['machine']}"))
        for loss in one.get("losses", ()):
            lines.append(clean(f"  {one['name']}: {loss}"))
    if any("then" in one for one in said["sessions"]):
        lines.append(
            "  after a restart of the machine, a session that is not saved comes back without its "
            "memory"
        )
    return "\n".join(lines)


def _shuts_down(manager: str) -> bool:
    """Whether the service manager is stopping everything; a stop of one unit is no shutdown."""
    import subprocess

    if manager not in SERVICES:
        raise Usage(f"--on-shutdown {manager[:20]!a} is user or system")
    user = ["--user"] if manager == "user" else []
    asked = ["systemctl", *user, "is-system-running"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.stdout.strip() == "stopping"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
