"""relay: a relay by itself, and who may register there. Needs no host."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli.operators import lasting
from holdfast.faces.cli.output import duration, put_json, table
from holdfast.home.config import RELAY_LISTEN as LISTEN
from holdfast.model import address, limits
from holdfast.model.errors import Usage

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

UNITS = "/etc/systemd/system"
ACTS = {"serve": (), "token": ("new", "ls", "revoke"), "admit": ()}
ONLY = {
    "serve": (
        "listen",
        "name",
        "tls_cert",
        "tls_key",
        "no_tls",
        "origin",
        "grpc",
        "metrics",
        "rate",
    ),
    "token": ("tenant", "expires"),
    "admit": ("tenant",),
}


def relay_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        choices=tuple(ACTS),
        metavar="serve|token|admit",
        help="serve: run one; token: make, list or revoke tokens; admit: let a host in by its route key",
    )
    p.add_argument(
        "what",
        nargs="?",
        metavar="new|ls|revoke|KEY",
        help="token: what to do (default: new); admit: the host's route key",
    )
    p.add_argument(
        "id", nargs="?", metavar="ID", help="token revoke: which, a unique beginning is enough"
    )
    p.add_argument(
        "--data",
        metavar="DIR",
        help="where it keeps tokens and routes (default: `relay` in the state directory; for root, of token and admit: that of the machine's unit, if there is one)",
    )
    p.add_argument(
        "--listen",
        metavar="ADDR:PORT",
        help=f"serve: WebSocket here (default: {LISTEN}; port 0: any)",
    )
    p.add_argument(
        "--name",
        metavar="HOST",
        action="append",
        help="serve: a name it is called by, besides its address; as often as needed",
    )
    p.add_argument(
        "--tls-cert",
        metavar="FILE",
        help="serve: its certificate with the chain, PEM; read again on SIGHUP",
    )
    p.add_argument("--tls-key", metavar="FILE", help="serve: the key of that, PEM")
    p.add_argument(
        "--no-tls",
        action="store_true",
        help="serve: without TLS on an address that others reach: only behind a proxy that has it",
    )
    p.add_argument(
        "--origin",
        metavar="ORIGIN",
        action="append",
        help="serve: pages of this origin may connect (default: none)",
    )
    p.add_argument("--grpc", metavar="ADDR:PORT", help="serve: gRPC here as well")
    p.add_argument(
        "--metrics",
        metavar="ADDR:PORT",
        help="serve: numbers for Prometheus here; a loopback address",
    )
    p.add_argument(
        "--rate",
        metavar="MIB",
        type=int,
        help="serve: MiB that one tenant may send in a second; more is read more slowly (default: 256)",
    )
    p.add_argument(
        "--tenant", metavar="NAME", help="token new, admit: whose it is (default: default)"
    )
    p.add_argument(
        "--expires",
        metavar="D",
        help="token new: admits new hosts for so long: 30m, 8h, 7d (default: no end)",
    )
    p.add_argument("--json", action="store_true")
    p.description = (
        "a relay: hosts dial out to it, clients reach them through it, and it sees neither what they say nor who they are. See docs/relay.md.\n\n"
        "`relay token` prints a token once; whoever has it can register hosts. A host that has registered stays admitted by its key\n"
        "when the token expires, and is out when it is revoked."
    )


def relay(args: Namespace) -> int:
    for act, names in ONLY.items():
        for name in names:
            if getattr(args, name) and name not in ONLY[args.act]:
                raise Usage(
                    f"--{name.replace('_', '-')} belongs to relay {act}",
                    "see `holdfast relay --help`",
                )
    args.data = os.path.abspath(args.data) if args.data else _default(args.act)
    return {"serve": _serve, "token": _token, "admit": _admit}[args.act](args)


def _default(act: str) -> str:
    """Root means the machine's own relay, if there is a unit for it, and nothing else was said."""
    from holdfast import home
    from holdfast.core import units

    if (
        act != "serve"
        and os.geteuid() == 0
        and not os.environ.get("HOLDFAST_HOME")
        and os.path.exists(f"{UNITS}/{units.RELAY}")
    ):
        return f"/var/lib/{units.RELAY_STATE}"
    found = home.resolve(os.environ)
    home.prepare(found)
    return found.relay


# ---------------------------------------------------------------- serve


def _serve(args: Namespace) -> int:
    from holdfast.relay import main

    if args.what is not None:
        raise Usage("relay serve takes options only", "see `holdfast relay --help`")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise Usage("--tls-cert and --tls-key belong together")
    listen, grpc, metrics = (
        address.endpoint(args.listen or LISTEN),
        address.endpoint(args.grpc) if args.grpc else None,
        address.endpoint(args.metrics) if args.metrics else None,
    )
    if metrics is not None and not address.loopback(metrics[0]):
        raise Usage(
            "--metrics takes a loopback address: its numbers are for this machine",
            "for example 127.0.0.1:9410",
        )
    if (
        not args.tls_cert
        and not args.no_tls
        and not all(address.loopback(place[0]) for place in (listen, grpc) if place is not None)
    ):
        raise Usage(
            "without TLS, tokens and passes could be read on the way",
            "give --tls-cert and --tls-key; or --no-tls if a proxy in front has TLS",
        )
    rate = limits.RELAY_TENANT_BYTES_S if args.rate is None else args.rate * limits.MiB
    if rate <= 0:
        raise Usage("--rate is at least 1", "in MiB per second")
    return main.serve(
        main.Options(
            listen,
            args.data,
            tuple(_name(n) for n in args.name or ()),
            tuple(_origin(o) for o in args.origin or ()),
            (args.tls_cert, args.tls_key) if args.tls_cert else None,
            grpc,
            metrics,
            rate,
            args.json,
        )
    )


def _name(text: str) -> str:
    if (
        not text
        or len(text) > 255
        or not text.isascii()
        or any(c in text for c in "/@?# ")
        or "://" in text
    ):
        raise Usage(
            f"{text!a} is not a name of a relay", "for example relay.example or relay.example:8443"
        )
    return text


def _origin(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if (
        scheme not in ("http", "https")
        or not rest
        or any(c in rest for c in "/@?#* ")
        or text != text.lower()
    ):
        raise Usage(
            f"{text!a} is not an origin",
            "for example https://app.example, exactly as browsers send it",
        )
    return text


# ---------------------------------------------------------------- token, admit


def _ask(args: Namespace, request: dict[str, Any]) -> Any:
    from holdfast.relay import control, main

    if control.acted_for(args.data) is None:
        main.prepare(args.data)
    return control.ask(args.data, request)


def _token(args: Namespace) -> int:
    from holdfast.relay import office

    act = args.what or "new"
    if act not in ACTS["token"] or (args.id is None) != (act != "revoke"):
        raise Usage("relay token [new|ls|revoke ID]", "see `holdfast relay --help`")
    if act == "new":
        token, digest = office.make()
        expires = None if args.expires is None else int(time.time() + lasting(args.expires))
        made = _ask(
            args,
            {
                "act": "token.new",
                "digest": digest.hex(),
                "tenant": args.tenant or office.TENANT,
                "expires": expires,
            },
        )
        if args.json:
            put_json({"token": token, **made})
        else:
            print(token)
        return 0
    if args.tenant or args.expires:
        raise Usage("--tenant and --expires belong to relay token new")
    found = _ask(args, {"act": f"token.{act}", **({"id": args.id} if act == "revoke" else {})})
    if args.json:
        put_json(found)
    elif act == "ls":
        now = time.time()
        print(
            table(
                ("ID", "TENANT", "STATE", "AGE", "EXPIRES"),
                [
                    (
                        t["id"],
                        t["tenant"],
                        t["state"],
                        duration(now - t["created"]),
                        "never" if t["expires"] is None else duration(max(0, t["expires"] - now)),
                    )
                    for t in found
                ],
            )
        )
    else:
        print(f"{found['id']} revoked; hosts that came with it are out")
    return 0


def _admit(args: Namespace) -> int:
    from holdfast.relay import office

    if args.what is None or args.id is not None:
        raise Usage(
            "relay admit needs the host's route key", "for example holdfast relay admit ed25519:..."
        )
    found = _ask(args, {"act": "admit", "key": args.what, "tenant": args.tenant or office.TENANT})
    if args.json:
        put_json(found)
    else:
        print(f"{found['key']} may register ({found['tenant']})")
    return 0
