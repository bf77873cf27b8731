"""The relay that `holdfast up` starts for an installation: on loopback, one per home.

    python -m holdfast.relay.local

The process that has the database open is the relay (relay/store.py); a second process finds that
out and exits. The relay listens where it listened last time, because invitations and paired
machines have that address; otherwise where the configuration says; otherwise at the next free port.
A `holdfast relay serve` started by hand or by a unit in the same directory is the same relay, and
`up` uses it.
"""

from __future__ import annotations

import os
import sys

from holdfast import home as homes
from holdfast.home import Home, config, private
from holdfast.model import address
from holdfast.model.errors import HoldfastError, Usage
from holdfast.relay import main as relay

PORTS_TRIED = 32
REMEMBERED = "listen"  # file with the configured and the actual address
REMEMBERED_BYTES = 256


def main() -> int:
    home = homes.resolve(os.environ)
    try:
        homes.prepare(home)
        relay.prepare(home.relay)
        wanted = config.value(home, "relay.listen")
        first, *others = _endpoints(home, wanted)
        return relay.serve(
            relay.Options(
                first,
                home.relay,
                instead=tuple(others),
                bound=lambda endpoint: _remember(home, wanted, endpoint),
                by="up",
            )
        )
    except HoldfastError as e:
        print(f"holdfast relay: {e.message}\n  {e.recover}", file=sys.stderr, flush=True)
        return e.exit_code


def _endpoints(home: Home, wanted: str) -> list[relay.Endpoint]:
    host, port = address.endpoint(wanted)
    if not address.loopback(host):
        raise Usage(
            f"relay.listen must be a loopback address, not {host}",
            "for other machines: `holdfast relay serve` with TLS, or `service install --relay`",
        )
    following = (
        [(host, n) for n in range(port, min(port + PORTS_TRIED, 65536))] if port else [(host, 0)]
    )
    data = private.read(f"{home.relay}/{REMEMBERED}", REMEMBERED_BYTES) or b""
    before, _, got = data.decode("ascii", "replace").strip().partition(" ")
    try:
        last = [address.endpoint(got)] if before == wanted else []
    except Usage:
        last = []
    return list(
        dict.fromkeys(
            [*(endpoint for endpoint in last if address.loopback(endpoint[0])), *following]
        )
    )


def _remember(home: Home, wanted: str, endpoint: relay.Endpoint) -> None:
    host, port = endpoint
    private.write(
        f"{home.relay}/{REMEMBERED}",
        f"{wanted} {f'[{host}]' if ':' in host else host}:{port}\n".encode(),
    )


if __name__ == "__main__":
    sys.exit(main())
