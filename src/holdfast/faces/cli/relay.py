"""relay: run a relay, and admit hosts. Needs no host."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from holdfast.faces.cli import local_relay
from holdfast.faces.cli.arguments import usage
from holdfast.faces.cli.operators import lasting
from holdfast.faces.cli.output import duration, put, put_json, table
from holdfast.home.config import RELAY_LISTEN as LISTEN
from holdfast.model import address, limits
from holdfast.model.errors import Usage
from holdfast.model.words import words_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from holdfast.model.jsontext import Json

UNITS = "/etc/systemd/system"
ACTS = {"serve": (), "token": ("new", "ls", "revoke"), "admit": ()}
ONLY = {
    "serve": words_of("listen name tls_cert tls_key no_tls origin grpc metrics rate"),
    "token": ("tenant", "expires"),
    "admit": ("tenant",),
}


def relay_parser(p: ArgumentParser) -> None:
    p.add_argument(
        "act",
        choices=tuple(ACTS),
        metavar="serve|token|admit",
        help="serve: run a relay; token: make, list or revoke tokens; "
        "admit: admit a host by its route key",
    )
    usage(f"""
        a relay connects clients to hosts that dialled out to it. It cannot read their traffic. See
        docs/reference/relay.md.

        `relay token` prints a token once; its holder can register hosts. A registered host stays
        admitted by its key when the token expires, and is removed when the token is revoked.

        what=[new|ls|revoke|KEY]  token: what to do (default: new); admit: the host's route key
        [ID]  token revoke: the token's id, or a unique beginning
        --data DIR  directory of tokens and routes (default in the state directory: `public-relay`
            for a relay that listens for other machines, else `relay`; for token and admit as root:
            that of the machine's unit, if there is one)
        --listen ADDR:PORT  serve: listen for WebSocket here (default: {LISTEN}; port 0: any)
        --name HOST...  serve: another name of this relay, besides its address; may be repeated
        --tls-cert FILE  serve: its certificate with the chain, PEM; read again on SIGHUP (default
            on a public address: a self-made one, whose key is pinned in the printed address)
        --tls-key FILE  serve: the private key of the certificate, PEM
        --no-tls  serve: no TLS on a public address: only behind a proxy that adds it
        --origin ORIGIN...  serve: web pages of this origin may connect (default: none)
        --grpc ADDR:PORT  serve: listen for gRPC here too
        --metrics ADDR:PORT  serve: metrics for Prometheus here; a loopback address
        --rate MIB  serve: MiB per second that one tenant may send; more is slowed down
            (default: 256)
        --tenant NAME  token new, admit: the tenant (default: default)
        --expires D  token new: valid for this long: 30m, 8h, 7d (default: no end)
        --json
    """)(p)


def relay(args: Namespace) -> int:
    for act, names in ONLY.items():
        for name in names:
            if getattr(args, name) and name not in ONLY[args.act]:
                raise Usage(
                    f"--{name.replace('_', '-')} is an option of relay {act}",
                    "see `holdfast relay --help`",
                )
    args.data = os.path.abspath(args.data) if args.data else _default(args)
    return {"serve": _serve, "token": _token, "admit": _admit}[args.act](args)


def _default(args: Namespace) -> str:
    """The default directory; for root, that of the machine's relay if the relay has a unit.

    A relay for other machines has a directory of its own, beside the relay that `up` starts. Tokens
    are for that relay if it exists: `up` admits its own host by key.
    """
    from holdfast import home
    from holdfast.core import systemd_units as units

    if (
        args.act != "serve"
        and os.geteuid() == 0
        and not os.environ.get("HOLDFAST_HOME")
        and os.path.exists(f"{UNITS}/{units.RELAY}")
    ):
        return f"/var/lib/{units.RELAY_STATE}"
    found = home.resolve(os.environ)
    home.prepare(found)
    there = os.path.exists(found.public_relay)
    if args.act == "serve":
        public = not address.loopback(address.endpoint(args.listen or LISTEN)[0])
        # Earlier releases had one directory: a public relay stays where its tokens are.
        earlier = os.path.exists(f"{found.relay}/relay.db") and not local_relay.started(found)
        return found.public_relay if public and (there or not earlier) else found.relay
    return found.public_relay if there else found.relay


# ---------------------------------------------------------------- serve


def _serve(args: Namespace) -> int:
    from holdfast.relay import main

    if args.what is not None:
        raise Usage("relay serve takes options only", "see `holdfast relay --help`")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise Usage("--tls-cert and --tls-key need each other")
    listen = address.endpoint(args.listen or LISTEN)
    grpc = address.endpoint(args.grpc) if args.grpc else None
    metrics = address.endpoint(args.metrics) if args.metrics else None
    if metrics is not None and not address.loopback(metrics[0]):
        raise Usage(
            "--metrics takes a loopback address: only this machine may read them",
            "for example 127.0.0.1:9410",
        )
    public = [one for one in (listen, grpc) if one is not None and not address.loopback(one[0])]
    rate = limits.RELAY_TENANT_BYTES_S if args.rate is None else args.rate * limits.MiB
    if rate <= 0:
        raise Usage("--rate is at least 1", "in MiB per second")
    return main.serve(
        main.Options(
            listen,
            args.data,
            tuple(_name(n) for n in args.name),
            tuple(_origin(o) for o in args.origin),
            (args.tls_cert, args.tls_key) if args.tls_cert else None,
            grpc,
            metrics,
            rate,
            args.json,
            self_signed=bool(public) and not args.no_tls,
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


def _ask(args: Namespace, request: Json) -> Any:
    from holdfast.relay import control, main

    if control.acted_for(args.data) is None:
        main.prepare(args.data)
    return control.ask(args.data, request)


def _which(data: str) -> str:
    """Name the relay: several relays can run on a machine, each with a directory."""
    from holdfast.relay import control

    running = control.status(data) if control.acted_for(data) is None else None
    urls = ", ".join(running["urls"].values()) if running else ""
    return f"the relay at {urls} ({data})" if urls else f"the relay of {data}"


def _token(args: Namespace) -> int:
    from holdfast.relay import admin

    act = args.what or "new"
    if act not in ACTS["token"] or (args.id is None) != (act != "revoke"):
        raise Usage("relay token [new|ls|revoke ID]", "see `holdfast relay --help`")
    if act == "new":
        token, digest = admin.make()
        expires = None if args.expires is None else int(time.time() + lasting(args.expires))
        wanted = {"digest": digest.hex(), "tenant": args.tenant or admin.TENANT}
        made = _ask(args, {"act": "token.new", **wanted, "expires": expires})
        if not args.json:
            print(f"a token for {_which(args.data)}:", file=sys.stderr, flush=True)
        return put(args, {"token": token, **made, "data": args.data}, token)
    if args.tenant or args.expires:
        raise Usage("--tenant and --expires are options of relay token new")
    found = _ask(args, {"act": f"token.{act}", **({"id": args.id} if act == "revoke" else {})})
    if args.json:
        put_json(found)
    elif act == "ls":
        now = time.time()
        rows = []
        for t in found:
            left = "never" if t["expires"] is None else duration(max(0, t["expires"] - now))
            rows.append((t["id"], t["tenant"], t["state"], duration(now - t["created"]), left))
        print(table(("ID", "TENANT", "STATE", "AGE", "EXPIRES"), rows))
    else:
        print(f"{found['id']} revoked; hosts that registered with it are removed")
    return 0


def _admit(args: Namespace) -> int:
    from holdfast.relay import admin

    if args.what is None or args.id is not None:
        raise Usage(
            "relay admit needs the host's route key", "for example holdfast relay admit ed25519:..."
        )
    found = _ask(args, {"act": "admit", "key": args.what, "tenant": args.tenant or admin.TENANT})
    return put(args, found, f"{found['key']} may register ({found['tenant']})")
