"""Incoming webhooks: signed deliveries of providers, and what is not a delivery."""

from __future__ import annotations

import json
import time

from tests.support.commands.http_client import OPERATOR, Answer, Server, start
from tests.support.installation import Installation, eventually
from tests.support.peers.providers import SECRET, Signed, github, standard, stripe


def test_t3_a_delivery_does_one_fixed_act_once(hf: Installation) -> None:
    hf.ready("ci")
    hf.people(OPERATOR, rights="execute", kind="service")
    secret = hf.user / "secret"
    secret.write_text(SECRET + "\n")
    got = hf.user / "got"
    add = ("--as", OPERATOR, "http", "incoming", "add")
    act = ("--session", "ci", "--json", "--run", f"cat >> {got}; echo >> {got}")
    given = ("--secret-file", str(secret))
    hf.quick(*add, "push", "--provider", "github", *given, *act)
    hf.quick(*add, "paid", "--provider", "stripe", *given, *act)
    made = json.loads(hf.quick(*add, "other", *act))
    assert (hf.home / f"http/{OPERATOR}.incoming").stat().st_mode & 0o777 == 0o600
    server = start(hf)

    def send(name: str, signed: Signed) -> Answer:
        """As a provider does: without a token, again while the session is busy."""

        def taken() -> Answer | None:
            answer = server.ask(f"/in/{name}", signed[0], token="", headers=signed[1])
            return None if answer.status == 423 else answer

        return eventually(taken, "an answer")

    def lines(count: int) -> list[str]:
        def whole() -> list[str] | None:
            found = got.read_text().splitlines()
            return found if len(found) >= count else None

        found = eventually(whole, f"{count} deliveries")
        hf.wait("ci", "idle")
        return found

    odd = b'{"x": "$(touch /tmp/never); `id`; \'; rm -rf /"}'
    answer = send("push", github(odd, "d-1"))
    assert answer.status == 202 and answer.json["ref"], answer
    assert lines(1) == [odd.decode()], "the payload is input, and never text of a command"
    assert send("push", github(odd, "d-1")).json["ref"] == answer.json["ref"]
    now = int(time.time())
    paid = b'{"id": "evt_1", "type": "paid"}'
    assert send("paid", stripe(paid, now)).status == 202
    assert len(lines(2)) == 2
    assert send("paid", stripe(paid, now + 1)).status == 202, "another attempt of the delivery"
    assert send("other", standard(made["secret"], b"{}", "m-1", now)).status == 202
    assert lines(3) == [odd.decode(), paid.decode(), "{}"]

    body, good = github(b"{}", "d-2")
    refused: list[tuple[str, Signed]] = [
        ("nothing", (body, good)),
        ("push", (b"{ }", good)),
        ("push", (body, {"X-GitHub-Delivery": "d-2"})),
        ("push", (body, {**good, "X-Hub-Signature-256": "sha256="})),
        ("push", github(body, "d-2", "guessed")),
        ("push", stripe(body, now)),
        ("paid", stripe(paid, now - 301)),
        ("paid", stripe(b"[]", now)),
        ("paid", (paid, {"Stripe-Signature": "t=x,v1"})),
        ("other", standard(made["secret"], b"{}", "m-2", now - 301)),
    ]
    for name, signed in refused:
        assert send(name, signed).status == 401, (name, signed)
    assert lines(3) == [odd.decode(), paid.decode(), "{}"]
    entries = [json.loads(line) for line in hf.quick("log", "ci", "--json").splitlines()]
    modes = [one["modality"] for one in entries if one["kind"] == "command"]
    assert {"http.in.push", "http.in.paid", "http.in.other"} <= set(modes)
    hf.quick("--as", OPERATOR, "http", "incoming", "rm", "push")
    assert send("push", github(b"{}", "d-3")).status == 401
    assert isinstance(server, Server)
