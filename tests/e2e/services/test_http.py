"""`holdfast http`: a real server and host, requests of any shape."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.faces.http import routes
from holdfast.faces.http.app import BODY_BYTES, HEAD_BYTES, STREAMS_PER_TOKEN
from holdfast.model import errors
from holdfast.model.advice import COMMAND
from tests.support.commands.http_client import OPERATOR, Server, make_token, start
from tests.support.installation import Installation, eventually
from tests.support.recovery.checkpoint import criu


@pytest.fixture(scope="module")
def server(hf: Installation) -> Iterator[Server]:
    hf.ready("work")
    hf.ready("other")
    hf.people(OPERATOR, rights="execute,halt,end,turn.seize,checkpoint", kind="service")
    made = start(hf)
    made.token = make_token(hf, "all", "--rights", "execute,halt,end,turn.seize,checkpoint")
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(60) in (0, -signal.SIGTERM)
    assert made.process.stderr is not None
    said = made.process.stderr.read().decode()
    assert "Traceback" not in said and made.token not in said, said


def run(server: Server, text: str, session: str = "work", **headers: str) -> dict[str, object]:
    answer = server.ask("run", {"session": session, "text": text}, headers=headers)
    assert answer.status == 200, answer
    found: dict[str, object] = answer.json
    return found


# ------------------------------------------------------------ calls


def test_a9_errors_have_advice_for_clients_of_http(server: Server, hf: Installation) -> None:
    narrow = make_token(hf, "narrow", "--rights", "observe", "--session", "work")
    answers = [
        server.ask("get", session="no-such-session"),
        server.ask("wait", session="work", for_="no-such-condition"),
        server.ask("wait", session="work", for_="idle", since="0"),
        server.ask("signal", {"session": "work", "pid": 1, "signal": "TERM"}),
        server.ask("turn", {"session": "work", "act": "hand", "to": "no-such-operator"}),
        server.ask("run", {"session": "work", "text": "true"}, token=narrow),
        server.ask("view", session="other", token=narrow),
        server.ask("ls", token="wrong"),
        server.ask("ls", headers={"Host": "elsewhere.example"}),
    ]
    assert all(answer.status >= 400 for answer in answers), answers
    for answer in answers:
        assert not COMMAND.search(answer.json["error"]["recover"]), answer


def test_t3_a_service_runs_and_looks_with_curl(server: Server, hf: Installation) -> None:
    body = json.dumps({"session": "work", "text": "echo hello; (exit 3)"})
    curl = ["curl", "-sS", "-H", f"Authorization: Bearer {server.token}"]
    done = subprocess.run(
        [*curl, "--json", body, f"{server.url}/v1/run"], capture_output=True, check=True
    )
    answer = json.loads(done.stdout)
    assert (answer["exit_code"], answer["text"], answer["state"]) == (3, "hello\n", "done")
    looked = subprocess.run(
        [*curl, f"{server.url}/v1/view?session=work"], capture_output=True, check=True
    )
    assert "hello" in json.loads(looked.stdout)["lines"]
    entries = [json.loads(line) for line in hf.quick("log", "work", "--json").splitlines()]
    mine = [one for one in entries if one["actor"] == OPERATOR and one["kind"] == "command"]
    assert mine[-1]["modality"] == "http.all", "the record names the token"


def test_a3_a_held_act_is_polled_and_repeated(server: Server, hf: Installation) -> None:
    make, key = {"name": "made", "cwd": str(hf.user)}, {"Idempotency-Key": "made-1"}
    made = server.ask("new", make, headers=key)
    assert (made.status, made.json["layout"]) == (201, "contained"), made
    assert server.ask("new", make, headers=key).json["id"] == made.json["id"]
    ready = server.ask("wait", session="made", for_=["idle", "exit"])
    assert ready.status == 200 and ready.json["for"] == "idle", ready
    act = {"session": "made", "text": "sudo -n true; echo came-back"}
    key = {"Idempotency-Key": "sudo-1"}
    held = server.ask("run", act, headers=key)
    assert (held.status, held.json["state"]) == (202, "held"), held
    (polled,) = server.ask(held.headers["location"]).json["approvals"]
    assert (polled["id"], polled["state"]) == (held.json["approval"]["id"], "waiting")
    (waiting,) = json.loads(hf.quick("approvals", "--json"))
    hf.quick("approve", waiting["id"], "--yes", "--binding", waiting["binding"])
    done = server.ask("run", act, headers=key)
    assert done.status == 200 and done.json["text"].endswith("came-back\n"), done
    typed = {"session": "made", "text": "echo typed", "keys": ["Enter"]}
    assert server.ask("send", typed).status == 200
    waited = server.ask("wait", session="made", for_="text:typed\\s", timeout=60)
    assert waited.status == 200
    read = server.ask("read", session="made")
    assert "typed" in "".join(piece["text"] for piece in read.json["pieces"])
    assert server.ask("read", session="made", from_=read.json["next"]).status == 200
    assert server.ask("end", {"session": "made"}).status == 202, "people are asked"
    hf.end("made")
    assert server.ask("get", session="nowhere").status == 404


def test_a9_a_repeated_act_has_one_effect(server: Server, hf: Installation) -> None:
    mark = hf.user / "counted"
    for _ in range(3):
        answer = run(server, f"echo x >> {mark}", **{"Idempotency-Key": "count-1"})
        assert answer["exit_code"] == 0
    assert mark.read_text() == "x\n"
    other = {"session": "work", "text": "true"}
    used = server.ask("run", other, headers={"Idempotency-Key": "count-1"})
    assert (used.status, used.error) == (409, "once_used")


def test_t3_a_long_command_has_a_reference_to_poll(server: Server, hf: Installation) -> None:
    gate = hf.gate("http-long.gate")
    act = {"session": "work", "text": f"cat {gate.path}; (exit 4)", "timeout": 0.5}
    answer = server.ask("run", act)
    assert (answer.status, answer.json["state"]) == (202, "running")
    busy = server.ask("run", {"session": "work", "text": "true"})
    assert (busy.status, busy.error) == (423, "busy")
    gate.open()
    server.ask("wait", session="work", for_="idle")
    told = server.ask(answer.headers["location"]).json
    assert told["exit_code"] == 4, told


def test_r2_a_service_saves_a_session_and_restores_it(server: Server, hf: Installation) -> None:
    criu()
    hf.ready("http-saved", "--contained")
    run(server, "X=kept", "http-saved")
    found = server.ask("checkpoint", {"session": "http-saved", "check": True})
    assert found.status == 200 and found.json["found"]["possible"], found
    saved = server.ask("checkpoint", {"session": "http-saved"})
    assert saved.status == 200 and not saved.json["saved"]["ended"], saved
    (listed,) = server.ask("checkpoints", session="http-saved").json["checkpoints"]
    assert listed["checkpoint"] == saved.json["saved"]["checkpoint"]
    stopped = server.ask("checkpoint", {"session": "http-saved", "stop": True})
    assert stopped.status == 200 and stopped.json["saved"]["ended"], stopped
    gone = server.ask("run", {"session": "http-saved", "text": "true"})
    assert gone.error == "saved" and not COMMAND.search(gone.json["error"]["recover"]), gone
    key = {"Idempotency-Key": "restore-1"}
    held = server.ask("restore", {"session": "http-saved"}, headers=key)
    assert held.status == 202, "people are asked"
    (waiting,) = json.loads(hf.quick("approvals", "--json"))
    hf.quick("approve", waiting["id"], "--yes", "--binding", waiting["binding"])
    back = server.ask("restore", {"session": "http-saved"}, headers=key)
    assert back.status == 200 and back.json["epoch"] == 2, back
    assert run(server, "echo $X", "http-saved")["text"] == "kept\n"


# ------------------------------------------------------------ streams


def test_s5_a_stream_resumes_without_a_hole(server: Server, hf: Installation) -> None:
    gate = hf.gate("http-stream.gate")
    act = {"session": "work", "text": f"seq 1 500; cat {gate.path}; seq 501 1000"}
    key = {"Idempotency-Key": "stream-1"}
    text, last = "", None
    for told in server.stream("run", act, headers=key):
        if told.name == "output":
            text, last = text + told.body["text"], told.id
            if "500\n" in text:
                break  # the client is gone, the command goes on
    assert last is not None
    os.kill(hf.host_pid, signal.SIGKILL)
    assert server.ask("get", session="work").status == 200, "the next host is there"
    gate.open()
    refused = server.ask("run", act, headers={"Accept": "text/event-stream", "Last-Event-ID": last})
    assert refused.status == 400, "without the key it would be a second run"
    for told in server.stream("run", act, headers={**key, "Last-Event-ID": last}):
        if told.name == "output":
            text += told.body["text"]
        elif told.name == "end":
            assert told.body["exit_code"] == 0
    assert text == "".join(f"{number}\n" for number in range(1, 1001))


def test_s5_followed_output_survives_the_host(server: Server, hf: Installation) -> None:
    run(server, "echo first-$((1+1))", "other")
    end, seen = 0, ""
    for told in server.stream("read", session="other"):
        if told.name == "output":
            assert told.body["offset"] >= end
            end, seen = int(told.id or 0), seen + told.body["text"]
        if "first-2" in seen:
            break
    os.kill(hf.host_pid, signal.SIGKILL)
    run(server, "echo second-$((1+1))", "other")
    seen = ""
    for told in server.stream("read", session="other", headers={"Last-Event-ID": str(end)}):
        assert told.name == "output" and told.body["offset"] >= end
        seen += told.body["text"]
        if "second-2" in seen:
            break
    assert "first-2" not in seen


def test_o_events_and_attention_are_followed(server: Server) -> None:
    numbers = []
    for told in server.stream("events"):
        numbers.append(int(told.id or 0))
        if len(numbers) == 5:
            break
    resumed = next(server.stream("events", headers={"Last-Event-ID": str(numbers[-1])}))
    assert int(resumed.id or 0) == numbers[-1] + 1
    noticed = server.stream("attention", sessions=["other"])
    assert next(noticed).body["name"] == "other"


# ------------------------------------------------------------ rights


def test_a2_a_token_is_narrower_than_its_operator(server: Server, hf: Installation) -> None:
    reads = make_token(hf, "reads", "--rights", "read")
    assert server.ask("view", token=reads, session="work").status == 200
    for op, act in (("run", {"session": "work", "text": "true"}), ("halt", {"session": "work"})):
        refused = server.ask(op, act, token=reads)
        assert (refused.status, refused.error) == (403, "not_allowed")
    hands = server.ask("turn", {"session": "work", "act": "hand", "to": "tester"}, token=reads)
    assert hands.status == 403
    more = hf.attempt("--as", OPERATOR, "http", "token", "add", "x", "--rights", "manage")
    assert more.rc == 4 and "itself does not have manage" in more.err


def test_a2_a_token_of_one_session_reaches_no_other(server: Server, hf: Installation) -> None:
    one = make_token(hf, "one", "--rights", "execute", "--session", "work")
    other = hf.get("other")
    assert server.ask("view", token=one, session="work").status == 200
    assert server.ask("view", token=one).json["name"] == "work", "the session is implied"
    assert [s["name"] for s in server.ask("ls", token=one).json["sessions"]] == ["work"]
    for session in ("other", other["id"], "nowhere"):
        refused = server.ask("view", token=one, session=session)
        assert (refused.status, refused.error) == (403, "not_allowed")
        assert server.ask("run", {"session": session, "text": "true"}, token=one).status == 403
    assert server.ask("resolve", token=one, ref=f"hf:{other['id']}@1").status == 403
    assert server.ask("new", {"name": "n"}, token=one).status == 403
    assert server.ask("metrics", token=one).status == 403
    noticed = server.stream("attention", token=one, sessions=["other"])
    assert next(noticed).body["name"] == "work"
    seen = {e["session"] for e in server.ask("events", token=one).json["events"]}
    assert seen == {hf.get("work")["id"]}


def test_a2_a_removed_token_ends_at_once(server: Server, hf: Installation) -> None:
    gone = make_token(hf, "gone", "--rights", "read")
    stream = server.stream("read", token=gone, session="work")
    assert next(stream).name == "output"
    assert server.ask("ls", token=gone).status == 200
    hf.quick("--as", OPERATOR, "http", "token", "rm", "gone")
    assert server.ask("ls", token=gone).status == 401
    assert [told.name for told in stream][-1] == "error"
    file = next(Path(hf.home, "http").glob("*.tokens"))
    assert file.stat().st_mode & 0o777 == 0o600
    assert server.token not in file.read_text()


def test_a2_only_a_service_serves(hf: Installation, server: Server) -> None:
    refused = hf.attempt("http")
    assert refused.rc == 4 and "tester is not a service" in refused.err
    far = hf.attempt("--as", OPERATOR, "http", "--listen", "0.0.0.0:0")
    assert far.rc == 4 and "in clear" in far.err


# ------------------------------------------------------------ attacks


def test_t6_a_page_that_rebinds_its_name_is_refused(server: Server) -> None:
    port = server.address[1]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"localhost.:{port}"):
        assert server.ask("ls", headers={"Host": host}).status == 421, host
    assert server.ask("ls", headers={"Host": f"LOCALHOST:{port}"}).status == 200
    two = server.raw(b"GET /v1/ls HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n")
    assert two.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421"))
    assert server.raw(b"GET /v1/ls HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421")


def test_t6_a_page_of_another_site_gets_nothing(server: Server) -> None:
    for origin in ("https://evil.example", "null", server.url):
        answer = server.ask("ls", headers={"Origin": origin})
        assert (answer.status, answer.error) == (403, "origin")
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    asked = server.ask("run", method="OPTIONS", headers={"Origin": "https://evil.example"})
    assert asked.status == 403
    form = {"Content-Type": "text/plain"}
    act = {"session": "work", "text": "true"}
    assert server.ask("run", act, headers=form).status == 415, "a form cannot act"
    answer = server.ask("ls", token="", headers={"Cookie": f"token={server.token}"})
    assert answer.status == 401 and "set-cookie" not in answer.headers


def test_t6_a_token_is_taken_from_its_header_only(server: Server) -> None:
    for wrong in ("", "hf_", server.token[:-1], server.token + "x", "hf_" + "x" * 5000):
        assert server.ask("ls", token=wrong).status == 401
    basic = {"Authorization": f"Basic {server.token}"}
    assert server.ask("ls", headers=basic).status == 401
    leaked = server.ask("ls", token="", access_token=server.token)
    assert leaked.status == 401
    leaked = server.ask("ls", access_token=server.token)
    assert leaked.status == 400 and server.token.encode() not in leaked.raw


def test_t6_sizes_are_bounded(server: Server) -> None:
    large = b'{"session": "work", "text": "' + b"x" * BODY_BYTES + b'"}'
    head = f"POST /v1/run HTTP/1.1\r\nHost: {server.url[7:]}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {server.token}\r\n"
    told = server.raw(f"{head}Content-Length: {len(large)}\r\n\r\n".encode())
    assert told.startswith(b"HTTP/1.1 413"), "refused by its length, before it is read"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 17
    assert b"HTTP/1.1 413" in server.raw(chunked)
    long = f"GET /v1/ls HTTP/1.1\r\nHost: {server.url[7:]}\r\nX: {'x' * HEAD_BYTES}\r\n"
    long += "Connection: close\r\n\r\n"
    assert server.raw(long.encode()).startswith(b"HTTP/1.1 431")
    assert server.ask("ls", x="y" * 9000).status == 414


def test_t6_odd_requests_get_an_error_as_json(server: Server) -> None:
    odd: list[tuple[bytes, int]] = [
        (b"[]", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b'{"text": "true"}', 400),
        (b'{"session": 1, "text": "true"}', 400),
        (b'{"session": "work", "text": "true", "seq": 1}', 400),
        (b'{"session": "work", "text": "true", "once": "x"}', 400),
        (b'{"session": "work", "text": "\\ud800", "timeout": 1}', 400),
        (b"[" * 100_000, 400),
    ]
    for body, status in odd:
        answer = server.ask("run", body)
        assert answer.status == status and "error" in answer.json, (body[:60], answer)
    assert server.ask("nothing").status == 404
    assert server.ask("run").status == 405
    assert server.ask("view", session=["a", "b"]).status == 400
    assert server.ask("down", {}).status == 404, "not served"


def test_t6_streams_are_bounded(server: Server, hf: Installation) -> None:
    many = make_token(hf, "many", "--rights", "read")
    open_ones = [server.stream("attention", token=many) for _ in range(STREAMS_PER_TOKEN)]
    for one in open_ones:
        next(one)
    accept = {"Accept": "text/event-stream"}
    assert server.ask("attention", token=many, headers=accept).status == 429
    for one in open_ones:
        one.close()  # type: ignore[attr-defined]

    def free() -> bool:
        stream = server.stream("attention", token=many)
        try:
            return bool(next(stream))
        except AssertionError:
            return False
        finally:
            stream.close()  # type: ignore[attr-defined]

    eventually(free, "a place for a stream")


# ------------------------------------------------------------ tables


def test_t6_every_error_has_a_status() -> None:
    for cls in errors.ALL:
        assert 200 < routes.status(cls("x")) < 600
    assert routes.status(errors.OnceUsed("x")) == 409
    assert routes.status(errors.GateRefused("x")) == 403
    assert routes.status(errors.Ambiguous("x")) == 400


def test_t6_every_served_operation_has_a_right() -> None:
    for row in routes.served():
        assert row.name == "ping" or row.name == "turn" or routes.needed(row, {}), row.name
