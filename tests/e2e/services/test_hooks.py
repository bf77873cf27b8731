"""Outgoing webhooks against real receivers on loopback, and the addresses that are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from pathlib import Path

import pytest

from holdfast import home as homes
from holdfast.faces.http import hooks
from holdfast.faces.http.hooks import Hook, Hooks
from holdfast.model.errors import Unavailable, Usage
from tests.support.commands.http_client import OPERATOR, start
from tests.support.commands.receiver import Receiver
from tests.support.commands.receiver import receiver as receiver
from tests.support.installation import Installation, eventually


def test_t3_events_reach_a_receiver_signed_and_in_order(
    hf: Installation, receiver: Receiver
) -> None:
    hf.ready("hooked")
    hf.people(OPERATOR, rights="read", kind="service")
    args = ("--on", "session.renamed", "--on", "session.ex*", "--session", "hooked", "--json")
    refused = hf.attempt("--as", OPERATOR, "http", "hook", "add", receiver.url, *args)
    assert refused.rc == 2 and "needs https" in refused.err
    made = json.loads(
        hf.quick("--as", OPERATOR, "http", "hook", "add", receiver.url, "--private", *args)
    )
    file = Path(hf.home, "http", f"{OPERATOR}.hooks")
    assert file.stat().st_mode & 0o777 == 0o600
    shown = hf.quick("--as", OPERATOR, "http", "hook", "ls", "--json")
    assert made["secret"] not in shown
    receiver.answers = [500, 302]
    start(hf)
    hf.quick("rename", "hooked", "hooked-2")
    hf.quick("rename", "hooked-2", "hooked-3")
    hf.end("hooked-3")
    got = eventually(lambda: receiver.got if len(receiver.got) >= 5 else None, "five deliveries")
    bodies = [json.loads(body) for _, _, body in got]
    assert [one["type"] for one in bodies] == ["session.renamed"] * 4 + ["session.exited"]
    assert [one["data"].get("name") for one in bodies[:4]] == ["hooked-2"] * 3 + ["hooked-3"]
    assert len({headers["webhook-id"] for _, headers, _ in got}) == 3, "a retry has the same id"
    assert {path for path, _, _ in got} == {"/in"}, "a redirect is not followed"
    for _, headers, body in got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(made["secret"].removeprefix("whsec_"))
        mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
    hf.quick("--as", OPERATOR, "http", "hook", "rm", made["id"])
    assert json.loads(hf.quick("--as", OPERATOR, "http", "hook", "ls", "--json")) == []


def test_t3_a_letter_that_no_receiver_takes_is_kept(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(hooks, "FIRST_PAUSE_S", 0.0)
    kept = Hooks(homes.resolve({"HOLDFAST_HOME": str(tmp_path)}), "web")
    hook = kept.add(receiver.url, ("a.*",), None, True, 3)
    receiver.answers = [503] * hooks.ATTEMPTS
    sending = hooks.Deliveries(kept, lambda name: pytest.fail("no connection is needed"))
    asyncio.run(sending._settle(hook, {"number": 4, "event": "a.b"}))
    asyncio.run(sending._settle(hook, {"number": 5, "event": "a.c"}))
    asyncio.run(sending._settle(hook, {"number": 6, "event": "b"}))
    found = kept.progress(hook.id)
    assert found["after"] == 5 and len(receiver.got) == hooks.ATTEMPTS + 1
    assert [(one["number"], one["why"]) for one in found["dead"]] == [
        (4, "the receiver answered 503")
    ]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1"),
    ],
)
def test_t6_an_address_that_only_the_server_reaches_is_refused(address: str) -> None:
    assert not hooks.public(address)
    shown = f"[{address}]" if ":" in address else address
    hook = Hook("h", f"https://{shown}/", ("*",), None, "whsec_eA==", False)
    with pytest.raises(Unavailable, match="private network"):
        hooks.deliver(hook, "1", b"{}", lambda made: pytest.fail("connected"))


def test_t6_public_addresses_are_accepted() -> None:
    assert hooks.public("93.184.216.34") and hooks.public("2606:4700::1111")


def test_t6_a_name_that_resolves_to_a_private_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(2, 1, 6, "", (one, 443)) for one in ("93.184.216.34", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    hook = Hook("h", "https://rebinds.example/", ("*",), None, "whsec_eA==", False)
    with pytest.raises(Unavailable, match="private network"):
        hooks.deliver(hook, "1", b"{}", lambda made: pytest.fail("connected"))


@pytest.mark.parametrize(
    "url",
    ["ftp://x/", "https://", "https://u:p@x/", "https://x y/", "https://x:99999/", "file:///etc"],
)
def test_t6_odd_addresses_are_refused(url: str) -> None:
    with pytest.raises(Usage):
        hooks.check_url(url, True)
