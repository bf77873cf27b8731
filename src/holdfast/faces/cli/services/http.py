"""http: an HTTP server for services, with tokens and webhooks."""

from __future__ import annotations

import os
import sys
import time

from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.connect import home_here, link, operator_name
from holdfast.faces.cli.operators import lasting
from holdfast.faces.cli.output import clean, put, put_json, table
from holdfast.model import rights
from holdfast.model.errors import Impossible, NotAllowed, NotFound, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.relayed import Relayed
    from holdfast.faces.http.app import App
    from holdfast.faces.http.hooks import Hooks
    from holdfast.faces.http.incoming import Incoming
    from holdfast.faces.http.tokens import Tokens
    from holdfast.home import Home

LISTEN = "127.0.0.1:8480"
PAGE = 1000  # events in an answer

http_parser = usage("""
    serve HTTP and JSON as a service operator, and make the tokens that its clients use. The server
    listens on loopback. Every act is the operator's own, and the record shows the token's name.

    what=[serve|token|hook|incoming=serve]  serve (default), token, hook: a webhook that tells of
        events, or incoming: a webhook of a provider that does one fixed act
    do=[add|ls|rm]  with token, hook and incoming: what to do (default: ls)
    [NAME]  with add, rm: the name; of a hook the address of the receiver, or its id
    --listen ADDR:PORT  where to listen (default: 127.0.0.1:8480)
    --host-name NAME...  another name of this server in the Host header; may be repeated
    --tls-cert FILE  a certificate chain, to listen beyond loopback
    --tls-key FILE  its private key
    --plain  listen beyond loopback without TLS, behind a proxy that adds it
    --relay URL  take webhooks of providers through this relay too, without an open port; the relay
        is one of `holdfast host ls`
    --on EVENT...  with hook add: the events, like session.exited or approval.*; may be repeated
    --private  with hook add: allow http, and an address of loopback or of a private network
    --provider github|stripe|standard=standard  with incoming add: how the provider signs
    --run TEXT  with incoming add: run this command; it reads the payload from its standard input
    --send TEXT  with incoming add: type this line; the payload is ignored
    --secret-file FILE  with incoming add: a secret that the provider made
    --rights LIST  with token add: read, execute, or single rights, separated by commas
    --session SESSION  with add: only on this session
    --expires D  with add: for this long: 30m, 8h, 7d
    --json
""")


def http(args: Namespace) -> int:
    home, operator = home_here(), _service(args)
    if args.what == "serve":
        if args.do is not None:
            raise Usage("http serve takes no further word", "see `holdfast http --help`")
        return _serve(args, home, operator)
    act = args.do or "ls"
    if (args.name is None) != (act == "ls"):
        raise Usage(
            f"http {args.what} {act} needs a NAME"
            if args.name is None
            else f"http {args.what} ls takes no NAME"
        )
    if args.what == "token":
        from holdfast.faces.http.tokens import Tokens

        return _token(args, act, Tokens(home, operator))
    if args.what == "hook":
        from holdfast.faces.http.hooks import Hooks

        return _hook(args, act, Hooks(home, operator))
    from holdfast.faces.http.incoming import Incoming

    return _receive(args, act, Incoming(home, operator))


def _service(args: Namespace) -> str:
    """The operator to serve as: a service, because people and agents act by themselves."""
    from holdfast.client.identity import identity

    name = operator_name(args)
    if identity(home_here(), name).kind != "service":
        raise Refused(
            f"{name} is not a service",
            "`holdfast operator add web --kind service`, `holdfast grant web --rights execute`, "
            "then `holdfast http --as web`",
        )
    return name


def _serve(args: Namespace, home: Home, operator: str) -> int:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise Usage("--tls-cert and --tls-key belong together")
    try:
        from holdfast.faces.http import server
        from holdfast.faces.http.app import App
    except ModuleNotFoundError as e:
        raise Impossible(
            f"the HTTP server needs a library: {e}", "pip install 'holdfast[http]'"
        ) from e
    from holdfast.faces.http.calls import Calls
    from holdfast.faces.http.hooks import Deliveries, Hooks
    from holdfast.faces.http.incoming import Incoming
    from holdfast.faces.http.tokens import Tokens
    from holdfast.model.address import endpoint

    tls = None if args.tls_cert is None else (args.tls_cert, args.tls_key)
    made = server.listening(endpoint(args.listen or LISTEN), tls is not None, args.plain)
    host, port = made.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http{'s' if tls else ''}://{shown}:{port}"
    calls = Calls(home, operator, os.environ)
    names = server.names(made, args.host_name or ())
    app = App(calls, Tokens(home, operator), Incoming(home, operator), names)
    facts = {"url": url, "operator": operator, "openapi": f"{url}/openapi.json"}
    said = f"{operator} serves {url}; routes: {url}/openapi.json"
    beside = [Deliveries(Hooks(home, operator), calls.connection).run]
    if args.relay is not None:
        relayed = _relayed(home, operator, args.relay, app)
        beside.append(relayed.run)
        facts["hooks"] = relayed.url
        said += f"\nproviders post to {relayed.url}NAME"
    put(args, facts, said)
    sys.stdout.flush()
    server.serve(made, app.asgi(*beside), tls)
    return 0


def _relayed(home: Home, operator: str, url: str, app: App) -> Relayed:
    """The line to a relay that brings webhooks. Its route follows from the operator's key."""
    from holdfast.client.identity import identity
    from holdfast.client.relayed import Relayed
    from holdfast.home import generation, keys, relays
    from holdfast.model.address import bare, name

    known = [one for one in relays.listing(home) if bare(one.url) == bare(url).rstrip("/")]
    if not known:
        raise NotFound(
            f"this machine is not connected to a relay {bare(url)[:200]!a}",
            "`holdfast host ls` lists its relays; `holdfast host connect URL` adds one",
        )
    return Relayed(
        known[0],
        keys.route_key(identity(home, operator), name(known[0].url)),
        lambda: generation.following(home, time.time_ns() // 1_000_000),
        app.relayed,
        lambda line: print(line, file=sys.stderr, flush=True),
    )


def _token(args: Namespace, act: str, tokens: Tokens) -> int:
    if act == "rm":
        tokens.remove(args.name)
        return put(args, {"name": args.name}, f"the token {args.name} is not valid any more")
    if act == "add":
        return _add(args, tokens)
    found = [
        {
            "name": t.name,
            "rights": t.rights,
            "session": t.session,
            "made": t.made,
            "expires": t.expires,
            "valid": t.valid(time.time()),
        }
        for t in tokens.listing()
    ]
    if args.json:
        put_json(found)
    else:
        rows = [
            (
                t.name,
                rights.show(t.rights),
                t.session or "machine",
                "-" if t.expires is None else time.strftime("%F %H:%M", time.localtime(t.expires)),
            )
            for t in tokens.listing()
        ]
        print(table(("NAME", "RIGHTS", "WHERE", "UNTIL"), rows))
    return 0


def _add(args: Namespace, tokens: Tokens) -> int:
    if args.rights is None:
        raise Usage("http token add needs --rights", "like --rights read")
    wanted = rights.parse(args.rights)
    if args.session is not None:
        wanted -= rights.MACHINE_WIDE
    connection, session = link(args), None
    if args.session is not None:
        session = str(connection.request("get", session=args.session)["id"])
    held: set[str] = set()
    for one in connection.request("operator.show", name=connection.operator)["envelopes"]:
        if one["state"] == "valid" and one["scope"].get("session") in (None, session):
            held.update(one["rights"])
    if missing := sorted(wanted - held):
        raise NotAllowed(
            f"{connection.operator} itself does not have {', '.join(missing)} there",
            "name fewer rights, or grant them to the operator first",
        )
    expires = None if args.expires is None else int(time.time() + lasting(args.expires))
    text = tokens.add(args.name, wanted, session, expires, time.time())
    facts = {"name": args.name, "token": text, "rights": sorted(wanted), "session": session}
    return put(
        args,
        {**facts, "expires": expires},
        f"{text}\nthis is shown once; send it as the header `Authorization: Bearer {text[:6]}...`",
    )


def _hook(args: Namespace, act: str, hooks: Hooks) -> int:
    if act == "rm":
        hooks.remove(args.name)
        return put(args, {"id": args.name}, f"the hook {args.name} is removed")
    if act == "add":
        return _add_hook(args, hooks)
    found = [
        {
            "id": one.id,
            "url": one.url,
            "on": one.on,
            "session": one.session,
            "private": one.private,
            **{key: value for key, value in hooks.progress(one.id).items() if key != "id"},
        }
        for one in hooks.listing()
    ]
    if args.json:
        put_json(found)
        return 0
    rows = [
        (one["id"], one["url"], ",".join(one["on"]), one["session"] or "-", str(len(one["dead"])))
        for one in found
    ]
    print(table(("ID", "RECEIVER", "EVENTS", "SESSION", "DEAD"), rows))
    for one in found:
        for letter in one["dead"]:
            at = time.strftime("%F %T", time.localtime(letter["time"]))
            print(f"{one['id']}: event {letter['number']} ({letter['type']}) was given up at {at}:")
            print(f"  {clean(letter['why'])}")
    return 0


def _add_hook(args: Namespace, hooks: Hooks) -> int:
    from holdfast.core.session.events import EVENTS

    if not args.on:
        raise Usage("http hook add needs --on EVENT", "like --on session.exited")
    for name in args.on:
        if not (
            any(one.startswith(name[:-1]) for one in EVENTS) if name[-1:] == "*" else name in EVENTS
        ):
            raise Usage(f"there is no event {name[:40]!a}", "docs/reference/events.md lists them")
    url, args.name, session = args.name, None, None
    connection = link(args)
    if args.session is not None:
        session = str(connection.request("get", session=args.session)["id"])
    after = 0  # only events from now on
    while page := connection.request("events", session=session, after=after, limit=PAGE)["events"]:
        if page[-1]["number"] <= after:
            break
        after = page[-1]["number"]
    made = hooks.add(url, tuple(args.on), session, args.private, after)
    return put(
        args,
        {"id": made.id, "url": url, "on": made.on, "session": session, "secret": made.secret},
        f"{made.id}\n{made.secret}\nthe receiver checks signatures with this secret, "
        "which is shown once",
    )


def _receive(args: Namespace, act: str, incoming: Incoming) -> int:
    from holdfast.faces.http.incoming import PREFIX

    if act == "rm":
        incoming.remove(args.name)
        return put(args, {"name": args.name}, f"the webhook {args.name} is removed")
    if act == "ls":
        found = incoming.listing()
        if args.json:
            shown = ("name", "provider", "session", "op", "text")
            put_json([{key: getattr(one, key) for key in shown} for one in found])
        else:
            rows = [(one.name, one.provider, one.session, one.op, clean(one.text)) for one in found]
            print(table(("NAME", "PROVIDER", "SESSION", "ACT", "TEXT"), rows))
        return 0
    if (args.run is None) == (args.send is None) or args.session is None:
        raise Usage("http incoming add needs --session, and --run or --send")
    secret = None
    if args.secret_file is not None:
        with open(args.secret_file) as file:
            secret = file.read().strip()
    session = str(link(args).request("get", session=args.session)["id"])
    op, text = ("run", args.run) if args.run is not None else ("send", args.send)
    made = incoming.add(args.name, args.provider, session, op, text, secret)
    facts = {"name": made.name, "path": PREFIX + made.name, "provider": made.provider}
    return put(
        args,
        {**facts, "session": session, "secret": made.secret},
        f"{PREFIX}{made.name}\n{made.secret}\nthe provider signs with this secret, shown once",
    )
