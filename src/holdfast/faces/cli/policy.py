"""policy, approvals, approve, deny.

`policy` needs no host. The command reads the file that a host would read, and judges examples by
the rules alone, without the file system and without plug-ins. An approver sees the exact act,
escaped, and signs the act as shown: an approval of an act that has changed meanwhile is void.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from holdfast.client import questions
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import link, say_away
from holdfast.faces.cli.output import (
    clean,
    columns,
    drop_typed,
    duration,
    put,
    put_json,
    timed,
    wrap,
)
from holdfast.model.errors import GateRefused, NotFound, Refused, Usage
from holdfast.model.words import words_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from holdfast.client.link import Link
    from holdfast.core.policy.approvals import Answer
    from holdfast.core.policy.conditions import Request
    from holdfast.core.policy.policy import Decision, Policy, Rule
    from holdfast.model.jsontext import Json

EXAMPLES_BYTES_MAX = 1024 * 1024
EVENTS_MAX = 10_000  # of a look for an earlier decision
ROW_CHARS = 120  # width of an act in a list that is not for a terminal
_EXAMPLE_TEXTS = words_of(
    "name act text kind operator cwd project home session shell foreground expect rule "
    "workspace net gate checkpoint"
)
_EXAMPLE_KEYS: dict[str, type] = dict.fromkeys(_EXAMPLE_TEXTS, str)
_EXAMPLE_KEYS |= dict.fromkeys(("argv", "mounted", "shadowed"), list)
_EXAMPLE_KEYS |= {"attached": bool, "contained": bool, "details": dict}
_SURROUNDINGS = frozenset(_EXAMPLE_KEYS) - {*words_of("name text argv expect rule checkpoint")}


# ---------------------------------------------------------------- policy


def policy_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        choices=("show", "check", "test", "try"),
        metavar="show|check|test|try",
        help="show: the rules in force; check: validate a file; "
        "test: judge the examples of a file; try: judge one command",
    )
    usage("""
        the policy of the gate: which acts of agents, services and people run at once, wait for
        approval, or are refused. Needs no host. `test` exits with 1 if a verdict differs from the
        verdict that the example expects.

        what=[FILE|TEXT]  check: a policy file; test: a file of examples; try: a command
        --policy FILE  judge by this file instead of the policy in force
        --kind human|agent|service=agent  try: the kind of operator who acts (default: agent)
        --cwd D  try: the working directory (default: this one)
        --contained  try: in a contained session
        --json
    """)(p)


def policy(args: Namespace) -> int:
    needs = {"test": "a file of examples", "try": "a command"}.get(args.act)
    if needs and args.what is None:
        raise Usage(f"policy {args.act} needs {needs}", "see `holdfast policy --help`")
    return {"show": _show, "check": _check, "test": _test, "try": _try}[args.act](args)


def _in_force() -> str:
    from holdfast import home

    return os.path.join(os.path.dirname(home.resolve(os.environ).config), "policy.toml")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read(EXAMPLES_BYTES_MAX + 1)
    except FileNotFoundError as e:
        raise NotFound(f"there is no file {path}", "name a file that exists") from e
    except (OSError, UnicodeDecodeError) as e:
        raise Usage(f"cannot read {path}: {e}", "a policy is a TOML file in UTF-8") from e


def _load(path: str | None) -> tuple[Policy, str, str]:
    """The policy, the source and the text."""
    from holdfast.core.policy import policy_file

    file = path or _in_force()
    if path is None and not os.path.exists(file):
        return policy_file.default(), "default", policy_file.default_text()
    text = _read(file)
    try:
        return policy_file.parse(text, file), file, text
    except policy_file.BadPolicy as e:
        raise Usage(
            e.message,
            "`holdfast policy check FILE` validates it; "
            "docs/reference/policy.md describes the format",
        ) from e


def _show(args: Namespace) -> int:
    from holdfast.core.policy.policy_file import render, written

    found, where, text = _load(args.policy or args.what)
    if args.json:
        rules = [_rule(rule, verdict) for rule, verdict in written(found)]
        put_json({"file": where, "version": found.version, "rules": rules})
        return 0
    import tomllib

    extended = "extends" in tomllib.loads(text)
    print(
        f"# in force: {clean(where)}, version {found.version[:12]}\n"
        f"{render(found) if extended else text}",
        end="",
    )
    return 0


def _rule(r: Rule, verdict: str) -> Json:
    return {
        "name": r.name,
        "verdict": verdict,
        "because": r.because,
        "who": {"kind": list(r.kinds), "operators": list(r.operators), "attached": r.attached},
        "when": dict(r.when),
        "unless": [dict(u) for u in r.unless],
        "by": list(r.by),
        "approvals": r.approvals,
    }


def _check(args: Namespace) -> int:
    found, where, _ = _load(args.what or args.policy)
    count, said = len(found.rules) + len(found.saving), [*found.warnings]
    shown = {"file": where, "ok": True, "rules": count, "version": found.version, "warnings": said}
    text = f"{clean(where)}: {count} rules, version {found.version[:12]}"
    return put(args, shown, "\n".join((text, *map(clean, said))))


def _try(args: Namespace) -> int:
    from holdfast.core.policy.policy import Verdict, explain

    found, _, _ = _load(args.policy)
    cwd = os.path.abspath(args.cwd or os.getcwd())
    example = {"text": args.what, "kind": args.kind, "cwd": cwd, "contained": args.contained}
    decision = _judge(found, _request({**example, "project": cwd, "home": os.path.expanduser("~")}))
    shown = {
        "verdict": str(decision.verdict),
        "rule": decision.rule,
        "because": decision.because,
        "reasons": list(decision.reasons),
        "checkpoint": decision.checkpoint,
        "explanation": explain(decision),
    }
    put(args, shown, explain(decision))
    return 4 if decision.verdict is Verdict.REFUSE else 0


def _test(args: Namespace) -> int:
    from holdfast.core.policy.policy import explain

    where, examples = _examples(args.what)
    found, _, _ = _load(args.policy or where)
    results: list[Json] = []
    for example in examples:
        decision = _judge(found, _request(example))
        right = str(decision.verdict) == example["expect"] and all(
            example.get(name, known) == known
            for name, known in (("rule", decision.rule), ("checkpoint", decision.checkpoint))
        )
        results.append(
            {
                "name": example["name"],
                "ok": right,
                "expect": example["expect"],
                "verdict": str(decision.verdict),
                "rule": decision.rule,
                "explanation": explain(decision),
            }
        )
    wrong = [r for r in results if not r["ok"]]
    if args.json:
        put_json(results)
    else:
        for r in wrong:
            print(f"{clean(r['name'])}: expected {r['expect']}, but {clean(r['explanation'])}")
        print(f"{len(results) - len(wrong)} of {len(results)} examples as expected")
    return 1 if wrong else 0


def _examples(path: str) -> tuple[str | None, list[Json]]:
    """The policy that the file names, and the examples with defaults filled in."""
    import tomllib

    try:
        body = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as e:
        raise Usage(f"{path}: {e}", "examples are a TOML file, see docs/reference/policy.md") from e
    unknown = sorted(set(body) - {"policy", "defaults", "example"})
    if unknown:
        raise Usage(f"{path}: unknown key {unknown[0]!a}", "known: policy, defaults, example")
    defaults, examples = body.get("defaults", {}), body.get("example", [])
    if not isinstance(defaults, dict) or not isinstance(examples, list) or not examples:
        raise Usage(
            f"{path}: there are no examples",
            "write them as [[example]], see docs/reference/policy.md",
        )
    where = body.get("policy")
    if where is not None and not isinstance(where, str):
        raise Usage(f"{path}: `policy` is the name of a file")
    _keys(defaults, _SURROUNDINGS, f"{path}: defaults")
    found = []
    for n, example in enumerate(examples, 1):
        if not isinstance(example, dict):
            raise Usage(f"{path}: examples are written as [[example]]")
        label = f"{path}: example {n}"
        _keys(example, frozenset(_EXAMPLE_KEYS), label)
        if example.get("expect") not in ("allow", "ask", "refuse"):
            raise Usage(f"{label}: `expect` is one of allow, ask, refuse")
        merged = {**defaults, **example}
        if ("text" in merged) + ("argv" in merged) + (
            merged.get("act", "run") not in ("run", "line", "paste", "keys", "exec")
            and "argv" not in merged
        ) != 1:
            raise Usage(f"{label}: it needs `text` or `argv`, or an `act` that has neither")
        merged.setdefault(
            "name", str(merged.get("text") or merged.get("argv") or merged.get("act"))
        )
        found.append(merged)
    return (None if where is None else os.path.join(os.path.dirname(path), where)), found


def _keys(body: Json, known: frozenset[str], label: str) -> None:
    for key, value in body.items():
        if key not in known:
            raise Usage(f"{label}: unknown key {key!a}", f"known: {', '.join(sorted(known))}")
        if type(value) is not _EXAMPLE_KEYS[key]:
            raise Usage(f"{label}: `{key}` has the wrong type")


def _request(example: Json) -> Request:
    from holdfast.core.policy.conditions import Actor, Request, Walls

    e = {"kind": "agent", "home": "/home/user", "cwd": "/home/user/project", **example}
    act = e.get("act", "new" if "argv" in e else "run")
    content = "\0".join(map(str, e["argv"])) if "argv" in e else e.get("text", "")
    return Request(
        act,
        Actor(e.get("operator", e["kind"]), "", e["kind"], e.get("attached", False)),
        session=e.get("session", ""),
        name=e.get("session", ""),
        epoch=1,
        content=content.encode("utf-8", "surrogateescape"),
        cwd=e["cwd"],
        project=e.get("project", e["cwd"]),
        home=e["home"],
        shell=e.get("shell", "bash"),
        foreground=e.get("foreground", ""),
        contained=e.get("contained", False),
        shadowed=frozenset(map(str, e.get("shadowed", ()))),
        mounted=tuple(map(str, e.get("mounted", ()))),
        details={str(k): str(v) for k, v in e.get("details", {}).items()},
        walls=Walls(
            own=(e["home"],),
            given=(e.get("workspace", e.get("project", e["cwd"])),),
            workspace=e.get("workspace", e.get("project", e["cwd"])),
            net=e.get("net", "own"),
            shares=(),
        )
        if e.get("contained", False)
        else None,
        gate=e.get("gate", "exec" if e.get("contained", False) else "input"),
    )


def _judge(found: Policy, request: Request) -> Decision:
    from holdfast.core.policy import execution
    from holdfast.core.policy.act_facts import facts_of
    from holdfast.host.policy.shfmt import Parser

    global _parser
    if _parser is None:
        _parser = Parser()
    facts = facts_of(request, _parser)
    return (
        execution.decide(found, request, facts)
        if request.act == execution.ACT and facts is not None
        else found.decide(request, facts)
    )


_parser: Any = None


# ---------------------------------------------------------------- approvals


approvals_parser = usage("""
    the acts that wait for approval: operator, act, place and the rule that asks

    [SESSION]
    --follow -f  continue, and print the list after each change
    --json  a list; with --follow one list per line
""")


def approvals(args: Namespace) -> int:
    def show(found: list[Json]) -> None:
        if args.json:
            put_json([timed(p, p["asked"]) for p in found])
        elif not found:
            print("nothing waits for approval", file=sys.stderr)
        else:
            print("\n".join(_listed(found)))
        sys.stdout.flush()

    shown: list[Json] | None = None

    def changed(event: Json) -> None:
        """Show the list, unless a host that is back sends the list that was shown last."""
        nonlocal shown
        if event.get("event") == "approvals":
            found = [{k: v for k, v in p.items() if k != "expires_in"} for p in event["approvals"]]
            if found != shown:
                shown = found
                show(event["approvals"])

    if args.follow:
        from holdfast.client.following import follow

        connection = link(args)
        session = args.session and connection.request("get", session=args.session)["id"]
        follow(connection, "approvals", say_away, on_event=changed, session=session)
    else:
        show(_waiting(link(args), session=args.session))
    return 0


def _listed(found: list[Json]) -> Iterator[str]:
    """The act first, as much as fits; on the next line the operator, the place and the reason."""
    room = columns()
    for p in found:
        act, wide = clean(p["text"]), int(min(room, ROW_CHARS)) - len(p["id"]) - 2
        whole = len(act) <= wide and p["whole"]
        yield f"{p['id']}  {act if whole else act[: max(0, wide - 3)] + '...'}"
        where = f"on {p['name'] or p['session']}" if p["session"] else "on this machine"
        given = ", approved" if p["state"] == "approved" else ""
        if p["needed"] > 1:
            given = f", {len(p['given'])} of {p['needed']} approved"
        more = [f"it runs on {', '.join(p['shaped'])}"] if p.get("shaped") else []
        first = [p["caution"]] if p.get("caution") else []
        if not p["counts"] and p["state"] != "approved":
            more.append(
                "; ".join(
                    filter(None, (f"your approval would not count: {p['why_not']}", p["recover"]))
                )
            )
        for line in (
            *first,
            f"{p['operator']} {where}, {duration(p['expires_in'])} left{given}",
            f"because {p['because']}",
            *more,
        ):
            yield from (f"    {part}" for part in wrap(clean(line), int(min(room, 1000)) - 4))


_ANSWER = """

    ID  the id of the act, or a unique beginning; see `holdfast approvals`. MACHINE/ID: of another
        machine
    --yes  {yes}
    --binding B  from `holdfast approvals --json`: if the act has changed since, nothing is decided
    --json
"""
approve_parser = usage(
    "let one waiting act happen, exactly as it was asked, once. Shows it and asks; "
    "signs with your key"
    + _ANSWER.format(yes="do not ask; needs --binding, which states what you have seen")
)
deny_parser = usage(
    "refuse one waiting act, or withdraw one of your own. Shows it and asks on a terminal; "
    "signs with your key" + _ANSWER.format(yes="do not ask")
)


def approve(args: Namespace) -> int:
    return _decide(args, "approve")


def deny(args: Namespace) -> int:
    return _decide(args, "deny")


def _waiting(connection: Link, **which: Any) -> list[Json]:
    found: list[Json] = connection.request("approvals", **which)["approvals"]
    return found


def _decide(args: Namespace, answer: Literal["approve", "deny"]) -> int:
    asks = not args.yes
    if answer == "approve":
        _refuse_unseen(args)
    elif not (sys.stdin.isatty() and sys.stdout.isatty()):
        asks = False
    connection = link(args)
    if getattr(args, "once", None) and _decided(connection, args, answer):
        return 0
    pending = _one(connection, args.id)
    lie = questions.fault(pending)
    if answer == "approve":
        questions.check(pending)
    elif lie:  # its facts are not shown, and asking about them would mean nothing
        asks = False
        print(f"holdfast: the host shows other facts than those of the act: {lie}", file=sys.stderr)
    if args.binding and args.binding != pending["binding"]:
        raise Refused(
            "the act is not the one that you have seen", "look again: `holdfast approvals`"
        )
    what: Answer = (
        "withdraw" if answer == "deny" and questions.own(pending, connection.operator) else answer
    )
    if asks:
        if answer == "approve" and (why := questions.obstacle(pending)) is not None:
            raise GateRefused(*why)  # before the question, to spare the approver the reading
        if not _agreed(
            questions.lines(pending),
            {
                "approve": "approve this, once? [y/N]",
                "deny": "deny this? [y/N]",
                "withdraw": "withdraw your request? [y/N]",
            }[what],
        ):
            print("nothing was decided")
            return 1
    fields = questions.answer(connection, pending, what)
    result = connection.request(fields.pop("op"), **fields)
    if args.json:
        put_json(result)
        return 0
    about = (
        f": {clean(pending['operator'])}: {clean(pending['text'][:ROW_CHARS])}"
        f"{'...' * (len(pending['text']) > ROW_CHARS)}"
    )
    done = {"approve": "approved", "deny": "denied", "withdraw": "withdrawn"}[what]
    print(f"{done} {pending['id']}{'' if lie else about}")
    if answer == "approve" and not result["complete"]:
        print(f"{result['needed'] - len(result['given'])} more must approve it")
    return 0


def _decided(connection: Link, args: Namespace, answer: str) -> bool:
    """Say so if this operator gave this answer before: a question gets one answer per operator."""
    wanted = ("given",) if answer == "approve" else ("denied", "withdrawn")
    events = connection.request("events", limit=EVENTS_MAX)["events"]
    for one in events:
        name, id, by = str(one["event"]), str(one.get("id", "")), one.get("by")
        mine = by == connection.operator and id.startswith(args.id)
        if mine and name.removeprefix("approval.") in wanted:
            facts = {key: one[key] for key in ("id", "needed", "given")}
            complete = answer == "deny" or len(one["given"]) >= one["needed"]
            said = {**facts, "answer": answer, "complete": complete}
            return not put(args, said, f"decided before: {name} {id}")
    return False


def _refuse_unseen(args: Namespace) -> None:
    """An approval needs proof that its act was seen. A denial does not: nothing happens by it."""
    if args.yes and not args.binding:
        raise Usage(
            "--yes needs --binding, which states what you have seen",
            "`holdfast approvals --json` has it",
        )
    if not args.yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Usage(
            "there is no terminal to ask on",
            "holdfast approve ID --yes --binding B, with B from `holdfast approvals --json`",
        )


def _one(connection: Link, begins: str) -> Json:
    """The only question with an id that begins with this text."""
    ids = [p["id"] for p in _waiting(connection) if str(p["id"]).startswith(begins)]
    found = _waiting(connection, id=ids[0]) if len(ids) == 1 else []
    if len(found) != 1:
        raise NotFound(
            f"{'several questions begin' if len(ids) > 1 else 'no question begins'} "
            f"with {begins[:40]!a}",
            "`holdfast approvals` lists the waiting acts",
        )
    return found[0]


def _agreed(lines: list[str], question: str) -> bool:
    """Show the lines page by page, and ask on the last page."""
    from holdfast.client.question_pages import COLS_MIN, ROWS_MIN, pages

    size = _terminal_size()
    if size[0] < COLS_MIN or size[1] < ROWS_MIN:
        raise Usage(
            "this terminal is too small to show the question",
            f"make it {COLS_MIN} columns wide and {ROWS_MIN} rows high, or larger",
        )
    shown = pages(lines, size, "Enter shows more; q leaves it waiting", [question])
    for page in shown[:-1]:
        if _answer(page) != "":
            return False
    return _answer(shown[-1]) in ("y", "yes")


def _terminal_size() -> tuple[int, int]:
    """Columns and rows, from the terminal itself: the variables COLUMNS and LINES may be stale."""
    try:
        cols, rows = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        cols, rows = 0, 0
    return cols or 80, rows or 24


def _answer(page: list[str]) -> str | None:
    """Show a page whose last row is a question; return the answer, None at the end of the input.

    The answer is one to this page: what was typed before the page appeared is dropped.
    """
    for row in page[:-1]:
        print(row)
    drop_typed(sys.stdout)
    try:
        return input(f"{page[-1]} ").strip().lower()
    except EOFError:
        print()
        return None
