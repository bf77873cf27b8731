"""The relay of one installation, as `holdfast up` starts it: on loopback, apart from everything, one for each home.

    python -m holdfast.relay.own

Which one it is: whoever has the database open (relay/store.py); a second one finds that and leaves. Where it listens: where it did the last time, because invitations and
those who were paired have that address; else where the configuration says; else at the next free port. `holdfast relay serve` by hand or by a unit in the
same directory is the same relay, and `up` uses it as it is.
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
REMEMBERED = "listen"  # in its directory: where it was to listen, and where it did
REMEMBERED_BYTES = 256


def main() -> int:
    home = homes.resolve(os.environ)
    try:
        homes.prepare(home)
        relay.prepare(home.relay)
        wanted = config.value(home, "relay.listen")
        first, *others = _places(home, wanted)
        return relay.serve(
            relay.Options(
                first,
                home.relay,
                instead=tuple(others),
                bound=lambda place: _remember(home, wanted, place),
                by="up",
            )
        )
    except HoldfastError as e:
        print(f"holdfast relay: {e.message}\n  {e.recover}", file=sys.stderr, flush=True)
        return e.exit_code


def _places(home: Home, wanted: str) -> list[relay.Place]:
    host, port = address.endpoint(wanted)
    if not address.loopback(host):
        raise Usage(
            f"relay.listen must be a loopback address, not {host}",
            "for other machines: `holdfast relay serve` with TLS, or `holdfast service install --relay`",
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
        dict.fromkeys([*(place for place in last if address.loopback(place[0])), *following])
    )


def _remember(home: Home, wanted: str, place: relay.Place) -> None:
    host, port = place
    private.write(
        f"{home.relay}/{REMEMBERED}",
        f"{wanted} {f'[{host}]' if ':' in host else host}:{port}\n".encode(),
    )


if __name__ == "__main__":
    sys.exit(main())
