"""The Python API as a client program of the conformance suite (docs/reference/conformance.md)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast import sync
from holdfast.home import Home, keys
from holdfast.model import canonical, signing
from holdfast.model.base64url import encode
from holdfast.model.errors import HoldfastError


def connect(given: dict[str, Any], folder: str) -> sync.Client:
    """A home with this key, whose socket is the suite's."""
    home = Path(folder, "home")
    for directory in (home, home / "run", home / "keys"):
        directory.mkdir(mode=0o700)
    os.symlink(given["socket"], home / "run/host.sock")
    private = bytes.fromhex(given["private"])
    key = {
        "v": 1,
        "kind": "human",
        "public": signing.show(signing.public(private)),
        "created": int(time.time()),
        "private": encode(private),
    }
    path = home / f"keys/{given['operator']}.key"
    path.touch(mode=0o600)
    path.write_bytes(canonical.encode(key))
    keys.load(Home(str(home), str(home), True), given["operator"])
    return sync.connect(
        operator=given["operator"], home=str(home), modality=given["modality"], start=False
    )


def done(client: sync.Client, do: str, given: dict[str, Any]) -> dict[str, Any]:
    if do == "list":
        found = client.sessions.list()
        return {"sessions": [{"id": s.id, "name": s.name, "state": s.state} for s in found]}
    if "stdin" in given:
        return {"ok": False, "unsupported": True}
    session = client.sessions.get(given.pop("session"))
    if do == "view":
        return {"lines": list(session.view().lines)}
    if do == "send":
        return {"ref": session.send(given.pop("text"), **given).ref}
    if do == "run":
        result = session.run(given.pop("text"), **given)
        return {"exit_code": result.exit_code, "output": result.data.hex()}
    if do == "read":
        data, gaps = b"", []
        for chunk in session.read(given["from"]):
            if chunk.gap:
                gaps.append([chunk.offset - chunk.gap, chunk.offset])
            data += chunk.data
        return {"output": data.hex(), "gaps": gaps}
    return {"ok": False, "unsupported": True}


def main(folder: str) -> None:
    client: sync.Client | None = None
    for line in sys.stdin:
        given = json.loads(line)
        number, do = given.pop("id"), given.pop("do")
        answer: dict[str, Any] = {"ok": True}
        try:
            if do == "connect":
                client = connect(given, folder)
            else:
                assert client is not None
                answer = {"ok": True, **done(client, do, given)}
        except HoldfastError as e:
            answer = {"ok": False, "error": e.to_wire()}
        print(json.dumps({"id": number, **answer}), flush=True)
    if client is not None:
        client.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
