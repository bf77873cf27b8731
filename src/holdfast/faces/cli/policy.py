"""policy, approvals, approve, deny.

`policy` needs no host: it reads the file that a host would read, and judges examples by the rules alone, without looking at the
file system and without asking plug-ins. The approver's side shows an act exactly as it is, escaped, and sends back what was
shown: who approves an act that changed meanwhile approves nothing.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from holdfast.client import deciding
from holdfast.faces.cli.connect import link
from holdfast.faces.cli.output import clean, columns, duration, put_json, timed, wrap
from holdfast.model.errors import GateRefused, NotFound, Refused, Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from holdfast.client.link import Link
    from holdfast.core.conditions import Request
    from holdfast.core.gate import Answer
    from holdfast.core.policy import Decision, Policy

EXAMPLES_BYTES_MAX = 1024 * 1024
ROW_CHARS = 120  # of an act in a list that is not for a terminal
_EXAMPLE_KEYS = {
    "name": str,
    "act": str,
    "text": str,
    "argv": list,
    "kind": str,
    "operator": str,
    "attached": bool,
    "cwd": str,
    "project": str,
    "home": str,
    "session": str,
    "shell": str,
    "foreground": str,
    "contained": bool,
    "mounted": list,
    "shadowed": list,
    "details": dict,
    "expect": str,
    "rule": str,
}
_SURROUNDINGS = frozenset(_EXAMPLE_KEYS) - {"name", "text", "argv", "expect", "rule"}


# ---------------------------------------------------------------- policy


def policy_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        choices=("show", "check", "test", "try"),
        metavar="show|check|test|try",
        help="show: the rules in force; check: is a file right; test: judge the examples of a file; try: judge one command",
    )
    p.add_argument(
        "what",
        nargs="?",
        metavar="FILE|TEXT",
        help="check: a policy file; test: a file of examples; try: a command",
    )
    p.add_argument(
        "--policy", metavar="FILE", help="judge by this file instead of the one in force"
    )
    p.add_argument(
        "--kind",
        default="agent",
        choices=("human", "agent", "service"),
        help="try: who acts (default: agent)",
    )
    p.add_argument("--cwd", metavar="D", help="try: where (default: here)")
    p.add_argument("--json", action="store_true")
    p.description = (
        "the gate's policy: what agents, services and people may do at once, what waits for approval, what is refused. Needs no host. "
        "`test` exits with 1 if a verdict differs from what its example expects."
    )


def policy(args: Namespace) -> int:
    if args.act == "show":
        return _show(args)
    if args.act == "check":
        return _check(args)
    if args.what is None:
        raise Usage(
            f"policy {args.act} needs {'a file of examples' if args.act == 'test' else 'a command'}",
            "see `holdfast policy --help`",
        )
    return _test(args) if args.act == "test" else _try(args)


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
    """The policy, where it comes from, its text."""
    from holdfast.core import policy as policies

    file = path or _in_force()
    if path is None and not os.path.exists(file):
        return policies.default(), "default", policies.default_text()
    text = _read(file)
    try:
        return policies.parse(text, file), file, text
    except policies.BadPolicy as e:
        raise Usage(
            e.message, "`holdfast policy check FILE` says when it is right; docs/policy.md says how"
        ) from e


def _show(args: Namespace) -> int:
    from holdfast.core.policy import render

    found, where, text = _load(args.policy or args.what)
    if args.json:
        put_json(
            {
                "file": where,
                "version": found.version,
                "rules": [
                    {
                        "name": r.name,
                        "verdict": str(r.verdict),
                        "because": r.because,
                        "who": {
                            "kind": list(r.kinds),
                            "operators": list(r.operators),
                            "attached": r.attached,
                        },
                        "when": dict(r.when),
                        "unless": [dict(u) for u in r.unless],
                        "by": list(r.by),
                        "approvals": r.approvals,
                    }
                    for r in found.rules
                ],
            }
        )
        return 0
    import tomllib

    extended = "extends" in tomllib.loads(text)
    print(
        f"# in force: {clean(where)}, version {found.version[:12]}\n{render(found) if extended else text}",
        end="",
    )
    return 0


def _check(args: Namespace) -> int:
    found, where, _ = _load(args.what or args.policy)
    if args.json:
        put_json({"file": where, "ok": True, "rules": len(found.rules), "version": found.version})
    else:
        print(f"{clean(where)}: {len(found.rules)} rules, version {found.version[:12]}")
    return 0


def _try(args: Namespace) -> int:
    from holdfast.core.policy import Verdict, explain

    found, _, _ = _load(args.policy)
    cwd = os.path.abspath(args.cwd or os.getcwd())
    decision = _judge(
        found,
        _request(
            {
                "text": args.what,
                "kind": args.kind,
                "cwd": cwd,
                "project": cwd,
                "home": os.path.expanduser("~"),
            }
        ),
    )
    if args.json:
        put_json(
            {
                "verdict": str(decision.verdict),
                "rule": decision.rule,
                "because": decision.because,
                "reasons": list(decision.reasons),
                "explanation": explain(decision),
            }
        )
    else:
        print(explain(decision))
    return 4 if decision.verdict is Verdict.REFUSE else 0


def _test(args: Namespace) -> int:
    from holdfast.core.policy import explain

    where, examples = _examples(args.what)
    found, _, _ = _load(args.policy or where)
    results = list[dict[str, Any]]()
    for example in examples:
        decision = _judge(found, _request(example))
        right = (
            str(decision.verdict) == example["expect"]
            and example.get("rule", decision.rule) == decision.rule
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


def _examples(path: str) -> tuple[str | None, list[dict[str, Any]]]:
    """The policy that the file names, and its examples, each with what it left to the defaults."""
    import tomllib

    try:
        body = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as e:
        raise Usage(f"{path}: {e}", "examples are a TOML file, see docs/policy.md") from e
    unknown = sorted(set(body) - {"policy", "defaults", "example"})
    if unknown:
        raise Usage(f"{path}: unknown key {unknown[0]!a}", "known: policy, defaults, example")
    defaults, examples = body.get("defaults", {}), body.get("example", [])
    if not isinstance(defaults, dict) or not isinstance(examples, list) or not examples:
        raise Usage(
            f"{path}: there are no examples", "write them as [[example]], see docs/policy.md"
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


def _keys(body: dict[str, Any], known: frozenset[str], label: str) -> None:
    for key, value in body.items():
        if key not in known:
            raise Usage(f"{label}: unknown key {key!a}", f"known: {', '.join(sorted(known))}")
        if type(value) is not _EXAMPLE_KEYS[key]:
            raise Usage(f"{label}: `{key}` has the wrong type")


def _request(example: dict[str, Any]) -> Request:
    from holdfast.core.conditions import Actor, Request

    e = {"kind": "agent", "home": "/home/user", "cwd": "/home/user/project", **example}
    act = e.get("act", "new" if "argv" in e else "run")
    content = "\0".join(map(str, e["argv"])) if "argv" in e else e.get("text", "")
    return Request(
        act,
        Actor(e.get("operator", e["kind"]), "", e["kind"], e.get("attached", False)),
        e.get("session", ""),
        e.get("session", ""),
        1,
        content.encode("utf-8", "surrogateescape"),
        e["cwd"],
        e.get("project", e["cwd"]),
        e["home"],
        e.get("shell", "bash"),
        e.get("foreground", ""),
        e.get("contained", False),
        b"",
        frozenset(map(str, e.get("shadowed", ()))),
        tuple(map(str, e.get("mounted", ()))),
        {str(k): str(v) for k, v in e.get("details", {}).items()},
    )


def _judge(found: Policy, request: Request) -> Decision:
    from holdfast.core import execution
    from holdfast.core.gate import facts_of
    from holdfast.host.parse import Parser

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


def approvals_parser(p: ArgumentParser) -> None:
    p.add_argument("session", nargs="?", metavar="SESSION")
    p.add_argument(
        "--follow", "-f", action="store_true", help="go on, and show it anew whenever it changes"
    )
    p.add_argument("--json", action="store_true", help="a list; with --follow one list per line")
    p.description = "what waits for a decision: who wants to do what, where, and which rule asks"


def approvals(args: Namespace) -> int:
    def show(found: list[dict[str, Any]]) -> None:
        if args.json:
            put_json([timed(p, p["asked"]) for p in found])
        elif not found:
            print("nothing waits for approval", file=sys.stderr)
        else:
            print("\n".join(_listed(found)))
        sys.stdout.flush()

    if args.follow:
        link(args).request(
            "approvals",
            wait_s=None,
            on_event=lambda e: show(e["approvals"]) if e.get("event") == "approvals" else None,
            session=args.session,
            follow=True,
        )
    else:
        show(_waiting(link(args), session=args.session))
    return 0


def _listed(found: list[dict[str, Any]]) -> Iterator[str]:
    """What is asked comes first, as much of it as fits; beneath it who asks, where, and why."""
    room = columns()
    for p in found:
        act, wide = clean(p["text"]), int(min(room, ROW_CHARS)) - len(p["id"]) - 2
        yield f"{p['id']}  {act if len(act) <= wide and p['whole'] else act[: max(0, wide - 3)] + '...'}"
        where = f"on {p['name'] or p['session']}" if p["session"] else "on this machine"
        given = (
            f", {len(p['given'])} of {p['needed']} approved"
            if p["needed"] > 1
            else ", approved"
            if p["state"] == "approved"
            else ""
        )
        more = [f"it runs on {', '.join(p['shaped'])}"] if p.get("shaped") else []
        if not p["counts"] and p["state"] != "approved":
            more.append(
                "; ".join(filter(None, (f"yours would not count: {p['why_not']}", p["recover"])))
            )
        for line in (
            f"{p['operator']} {where}, {duration(p['expires_in'])} left{given}",
            f"because {p['because']}",
            *more,
        ):
            yield from (f"    {part}" for part in wrap(clean(line), int(min(room, 1000)) - 4))


def approve_parser(p: ArgumentParser) -> None:
    _answer_parser(p)
    p.description = "let one waiting act happen, exactly as it was asked, once. Shows it and asks; signs with your key"


def deny_parser(p: ArgumentParser) -> None:
    _answer_parser(p)
    p.description = "refuse one waiting act, or withdraw one of your own. Shows it and asks; signs with your key"


def _answer_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "id",
        metavar="ID",
        help="of the question, or a unique beginning of it; see `holdfast approvals`",
    )
    p.add_argument(
        "--yes",
        action="store_true",
        help="do not ask; needs --binding, which says what you have seen",
    )
    p.add_argument(
        "--binding",
        metavar="B",
        help="as `holdfast approvals --json` showed it: if it is another one now, nothing is decided",
    )
    p.add_argument("--json", action="store_true")


def approve(args: Namespace) -> int:
    return _decide(args, "approve")


def deny(args: Namespace) -> int:
    return _decide(args, "deny")


def _waiting(connection: Link, **which: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.request("approvals", **which)["approvals"]
    return found


def _decide(args: Namespace, answer: Literal["approve", "deny"]) -> int:
    if args.yes and not args.binding:
        raise Usage(
            "--yes needs --binding: what you have seen", "`holdfast approvals --json` has it"
        )
    if not args.yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Usage(
            "there is no terminal to ask on",
            f"holdfast {answer} ID --yes --binding B, with B from `holdfast approvals --json`",
        )
    connection = link(args)
    pending = _one(connection, args.id)
    if args.binding and args.binding != pending["binding"]:
        raise Refused("it is not what you have seen", "look again: `holdfast approvals`")
    what: Answer = (
        "withdraw" if answer == "deny" and deciding.own(pending, connection.operator) else answer
    )
    if not args.yes:
        if (
            answer == "approve" and not pending["counts"]
        ):  # nobody is to read and decide for nothing
            raise GateRefused(
                f"your approval of {pending['id']} would not count: {pending['why_not']}",
                pending["recover"],
            )
        print("\n".join(deciding.question(pending)))
        if not _agreed(
            {
                "approve": "approve this, once? [y/N] ",
                "deny": "deny this? [y/N] ",
                "withdraw": "withdraw your question? [y/N] ",
            }[what]
        ):
            print("nothing was decided")
            return 1
    fields = deciding.answer(connection, pending, what)
    result = connection.request(fields.pop("op"), **fields)
    if args.json:
        put_json(result)
        return 0
    print(
        {"approve": "approved", "deny": "denied", "withdraw": "withdrawn"}[what],
        f"{pending['id']}: {clean(pending['operator'])}: {clean(pending['text'][:ROW_CHARS])}{'...' * (len(pending['text']) > ROW_CHARS)}",
    )
    if answer == "approve" and not result["complete"]:
        print(f"{result['needed'] - len(result['given'])} more must approve it")
    return 0


def _one(connection: Link, begins: str) -> dict[str, Any]:
    """The question whose id begins so, whole."""
    ids = [p["id"] for p in _waiting(connection) if str(p["id"]).startswith(begins)]
    found = _waiting(connection, id=ids[0]) if len(ids) == 1 else []
    if len(found) != 1:
        raise NotFound(
            f"{'several questions begin' if len(ids) > 1 else 'no question begins'} with {begins[:40]!a}",
            "`holdfast approvals` lists what waits",
        )
    return found[0]


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
