"""Metrics and traces of a real installation, read by Prometheus' own parser and a collector."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from holdfast import home as homes
from holdfast.client.link import Link
from holdfast.model.errors import GateRefused
from tests.support.collector import Collector, collector, facts, numbers, of, parsed, until, wanted
from tests.support.installation import Installation, eventually, installation

SECRET = "correct-horse-battery-staple"
CONFIG = "[telemetry]\n"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home")) as made:
        yield made


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def get(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


# ------------------------------------------------------------ metrics


def test_o_acts_are_counted_by_kind_and_verdict(hf: Installation) -> None:
    before = numbers(hf)
    hf.ready("counted")
    hf.quick("run", "counted", "--", "echo", "hello")
    assert (
        hf.attempt("run", "counted", "--", "rm", "-rf", "/").rc == 255
    )  # the default policy says no
    hf.quick("halt", "counted")
    hf.quick("resume", "counted")
    after = numbers(hf)

    def grew(name: str, **labels: str) -> float:
        return of(after, name, **labels) - of(before, name, **labels)

    assert grew("holdfast_sessions", state="detached") == 1
    assert grew("holdfast_acts_total", kind="command", verdict="applied") == 1
    assert grew("holdfast_acts_total", kind="command", verdict="refused") == 1
    assert grew("holdfast_acts_total", kind="halt", verdict="applied") == 1
    assert grew("holdfast_gate_decisions_total", act="run", verdict="allow") == 1
    assert grew("holdfast_gate_decisions_total", act="run", verdict="refuse") == 1
    assert grew("holdfast_gate_seconds_count") >= 2 and grew("holdfast_halt_seconds_count") == 1
    assert grew("holdfast_request_errors_total", error="gate_refused") == 1
    assert grew("holdfast_events_total", event="gate.refused") == 1
    assert grew("holdfast_turn_moves_total", how="write") == 1
    assert (
        grew("holdfast_record_entries_total") >= 4
        and grew("holdfast_record_write_seconds_count") >= 2
    )
    assert grew("holdfast_output_bytes_total") > len("hello\r\n")
    assert grew("holdfast_rings_bytes") >= 8 << 20
    assert (
        of(after, "holdfast_keeper_links", state="connected")
        == of(before, "holdfast_keeper_links", state="connected") + 1
    )
    hf.end("counted")


def test_o_keys_clients_and_seizes_are_counted(hf: Installation) -> None:
    hf.ready("watched")
    before = numbers(hf)
    terminal = hf.attach("watched")
    terminal.see("$")
    terminal.send("true\r")
    eventually(
        lambda: (
            of(numbers(hf), "holdfast_key_inputs_total", verdict="applied")
            > of(before, "holdfast_key_inputs_total", verdict="applied")
        ),
        "keys",
    )
    now = numbers(hf)
    assert (
        of(now, "holdfast_attached_clients", kind="human", modality="cli", mode="write") == 1
        and of(now, "holdfast_attached_operators") == 1
    )
    hf.quick("seize", "watched")
    assert (
        of(numbers(hf), "holdfast_acts_total", kind="seize", verdict="applied")
        == of(before, "holdfast_acts_total", kind="seize", verdict="applied") + 1
    )
    assert (
        of(numbers(hf), "holdfast_seize_seconds_count")
        == of(before, "holdfast_seize_seconds_count") + 1
    )
    hf.end("watched")
    after = until(
        hf,
        lambda found: (
            of(found, "holdfast_clients_left_total", how="ended")
            > of(before, "holdfast_clients_left_total", how="ended")
        ),
        "the end of it",
    )
    assert of(after, "holdfast_output_bytes_total") >= of(now, "holdfast_output_bytes_total"), (
        "a session that ends takes nothing from a counter"
    )
    assert of(after, "holdfast_key_inputs_total", verdict="applied") >= of(
        now, "holdfast_key_inputs_total", verdict="applied"
    )


def pinned(hf: Installation) -> int | None:
    """The bytes that all sessions pin; None if the page does not say."""
    found = re.findall(r"^holdfast_sessions_pinned_bytes{.*} (\S+)", hf.quick("metrics"), re.M)
    return int(sum(map(float, found))) if found else None


def test_r8_memory_that_was_not_measured_yet_is_no_zero(hf: Installation) -> None:
    hf.ready("resident")
    hf.quick("down")
    hf.quick("up", "--detach")
    hf.quick("run", "resident", "--", "true")
    assert pinned(hf) is None
    eventually(lambda: pinned(hf) is not None, "the first round")
    assert (pinned(hf) or 0) > 1_000_000
    hf.end("resident")


def test_o_metrics_as_json_are_the_same_families(hf: Installation) -> None:
    hf.quick("ls", "--cost")  # the figures of the first round are there
    families = [json.loads(line) for line in hf.quick("metrics", "--json").splitlines()]
    assert all(set(one) == {"name", "kind", "help", "samples"} for one in families)
    names = {one["name"] for one in families}
    assert names == set(re.findall(r"^# TYPE (\S+)", hf.quick("metrics"), re.M))
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert not [name for name in names if f"`{name}`" not in page], (
        "docs/reference/metrics.md lists every name"
    )


def test_o_metrics_have_amounts_and_neither_identities_nor_contents(hf: Installation) -> None:
    hf.people("zelda")
    hf.ready("hideaway")
    hf.quick("--as", "zelda", "run", "hideaway", "--", "echo", SECRET)
    page = hf.quick("metrics")
    for word in (
        "zelda",
        "tester",
        "hideaway",
        hf.get("hideaway")["id"],
        SECRET,
        "echo",
        str(hf.home),
    ):
        assert word not in page
    hf.end("hideaway")


def test_o_claims_of_a_client_are_no_labels(hf: Installation) -> None:
    hf.ready("visited")
    link = Link(homes.resolve(hf.env), "tester", modality="zelda-s-own", autostart=False)
    link.request("run", session="visited", text="true")
    link.request("attach", session="visited", cols=80, rows=24)
    page = hf.quick("metrics")
    assert (
        "zelda-s-own" not in page
        and of(
            parsed(page), "holdfast_attached_clients", kind="human", modality="other", mode="write"
        )
        == 1
    )
    link.close()
    hf.end("visited")


def test_o_a_refusal_in_a_circle_is_counted_and_not_told_each_time(hf: Installation) -> None:
    hf.ready("circle")
    before, times = numbers(hf), 12
    link = Link(homes.resolve(hf.env), "tester", autostart=False)
    for _ in range(times):
        with pytest.raises(GateRefused):
            link.request("run", session="circle", text="rm -rf /")
    link.close()
    after = numbers(hf)
    assert (
        of(after, "holdfast_acts_total", kind="command", verdict="refused")
        - of(before, "holdfast_acts_total", kind="command", verdict="refused")
        == times
    )
    told = [
        one
        for line in hf.quick("events", "circle", "--json").splitlines()
        if (one := json.loads(line))["event"] == "gate.refused"
    ]
    assert (
        all(
            later["time"] - earlier["time"] > 0.9
            for earlier, later in zip(told, told[1:], strict=False)
        )
        and told
    )
    hf.end("circle")


def test_o_metrics_need_the_right_to_look_at_the_whole_machine(hf: Installation) -> None:
    hf.ready("room")
    hf.people("guest", rights="")
    hf.ok("grant", "guest", "--rights", "read", "--session", "room")
    assert hf.attempt("--as", "guest", "view", "room").rc == 0
    assert hf.attempt("--as", "guest", "metrics").rc == 4
    hf.people("reader", rights="read")
    assert hf.attempt("--as", "reader", "metrics").rc == 0
    hf.end("room")


def test_o_metrics_are_served_on_a_loopback_port_and_survive_a_replaced_host(
    tmp_path: Path,
) -> None:
    port = free_port()
    with installation(tmp_path, f'[telemetry]\nmetrics = "127.0.0.1:{port}"\n') as hf:
        hf.ready("work")

        def served() -> str:
            try:
                status, page = get(port)
            except OSError:
                return ""
            assert status == 200
            return page

        first = parsed(eventually(served, "the page"))
        assert (
            of(first, "holdfast_sessions", state="detached") == 1
            and of(first, "holdfast_host_term") == 1
        )
        assert get(port, "/healthz") == (200, "ok\n") and get(port, "/other")[0] == 404
        assert (
            get(port, Host="evil.example")[0] == 421
            and get(port, Origin="https://evil.example")[0] == 403
        )
        hf.ask("down", restart=True)
        wanted(
            lambda: parsed(served()),
            lambda found: (
                of(found, "holdfast_host_term") == 2
                and of(found, "holdfast_events_total", event="session.adopted") == 1
                and of(found, "holdfast_sessions", state="detached") == 1
            ),
            "the page of the next host, which has adopted the session",
        )
        assert "metrics" in hf.quick("doctor")


def test_o_a_taken_metrics_port_blocks_no_work_and_is_used_when_free(
    tmp_path: Path,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with installation(tmp_path, f'[telemetry]\nmetrics = "127.0.0.1:{port}"\n') as hf:
            hf.ready("work")
            assert hf.ok("run", "work", "--", "echo", "fine").out == "fine\n"
            eventually(
                lambda: "no metrics on" in (hf.home / "host.log").read_text(), "a line in the log"
            )
            other.close()

            def served() -> bool:
                try:
                    return get(port)[0] == 200
                except OSError:
                    return False

            eventually(served, "the page")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('metrics = "0.0.0.0:9464"', "loopback"),
        ('metrics = "192.0.2.1:9464"', "loopback"),
        ('metrics = "9464"', "ADDR:PORT"),
        ('metrics = "[::]:1"', "loopback"),
        ('otlp = "http://collector.example:4318"', "https"),
        ('otlp = "ftp://127.0.0.1"', "http://HOST:PORT"),
        ('otlp = "http://u:p@127.0.0.1:4318"', "OTEL_EXPORTER_OTLP_HEADERS"),
        ('otlp = "http://127.0.0.1:99999"', "URL"),
        ("names = 1", "bool"),
    ],
)
def test_o_a_configuration_that_exposes_metrics_too_widely_is_refused(
    tmp_path: Path, config: str, says: str
) -> None:
    with installation(tmp_path, CONFIG + config + "\n") as hf:
        refused = hf.attempt("config", "show")
        assert refused.rc == 2 and says in refused.err
        assert hf.attempt("up", "--detach").rc != 0
        (hf.home / "config.toml").unlink()


# ------------------------------------------------------------ traces


def traced(hf: Installation, received: Collector, *command: str) -> Any:
    """The span of such a command; repeated until there is one: the host loads the SDK first."""

    def look() -> list[Any]:
        hf.quick(*command)
        return received.acts("command")

    return eventually(look, "a span")[0]


def test_o_an_act_is_a_span_with_its_steps_and_without_its_text(
    tmp_path: Path,
) -> None:
    with (
        collector() as received,
        installation(tmp_path, f'[telemetry]\notlp = "{received.url}"\n') as hf,
    ):
        hf.people("zelda")
        made = hf.ready("hideaway")
        span = traced(hf, received, "--as", "zelda", "run", "hideaway", "--", "echo", SECRET)
        about = facts(span)
        assert (
            about["holdfast.session.id"] == made["id"]
            and about["holdfast.act.kind"] == "command"
            and about["holdfast.act.verdict"] == "applied"
        )
        assert about["holdfast.actor.kind"] == "human" and about["holdfast.actor.modality"] == "cli"
        assert (
            about["holdfast.originators.count"] == 0
            and about["holdfast.act.number"] >= 1
            and about["holdfast.act.sequence"] >= 1
        )
        inside = received.inside(span)
        assert sorted(inside, key=lambda name: inside[name].start_time_unix_nano) == [
            "gate",
            "record",
            "effect",
        ]
        assert all(
            span.start_time_unix_nano
            <= one.start_time_unix_nano
            <= one.end_time_unix_nano
            <= span.end_time_unix_nano
            for one in inside.values()
        )
        assert all(one.trace_id == span.trace_id for one in inside.values())

        assert hf.attempt("--as", "zelda", "run", "hideaway", "--", "rm", "-rf", "/").rc == 255
        refused = eventually(
            lambda: [
                one
                for one in received.acts("command")
                if facts(one)["holdfast.act.verdict"] == "refused"
            ],
            "the refusal",
        )[0]
        assert set(received.inside(refused)) == {"gate"}, (
            "a refused act was neither recorded as an intent nor done"
        )
        hf.quick("halt", "hideaway")
        halted = eventually(lambda: received.acts("halt"), "the halt")[0]
        assert set(received.inside(halted)) == {"effect"}, "neither a policy nor a disk is asked"
        sent = b"".join(received.raw)
        for word in (SECRET, "zelda", "tester", "hideaway", "rm -rf", "echo"):
            assert word.encode() not in sent
        assert b"holdfast" in sent
        found = until(
            hf,
            lambda now: (
                of(now, "holdfast_trace_spans_total", result="exported") >= len(received.spans)
            ),
            "the count",
        )
        assert of(found, "holdfast_trace_spans_total", result="failed") == 0


def test_o_traces_name_people_only_if_that_is_configured(tmp_path: Path) -> None:
    with (
        collector() as received,
        installation(tmp_path, f'[telemetry]\notlp = "{received.url}"\nnames = true\n') as hf,
    ):
        hf.ready("hideaway")
        span = traced(hf, received, "run", "hideaway", "--", "echo", SECRET)
        assert (
            facts(span)["holdfast.actor.name"] == "tester"
            and facts(span)["holdfast.session.name"] == "hideaway"
        )
        assert SECRET.encode() not in b"".join(received.raw)


def test_o_a_dead_collector_costs_a_counter_and_one_line_in_the_log(tmp_path: Path) -> None:
    with installation(tmp_path, f'[telemetry]\notlp = "http://127.0.0.1:{free_port()}"\n') as hf:
        hf.ready("work")

        def failed() -> float:
            assert hf.ok("run", "work", "--", "echo", "fine").out == "fine\n"
            return of(numbers(hf), "holdfast_trace_spans_total", result="failed")

        first = eventually(failed, "spans that were not taken")
        eventually(lambda: failed() > first, "more of them")
        log = (hf.home / "host.log").read_text()
        assert log.count("does not take traces") == 1 and "Traceback" not in log


def test_o_standard_variables_say_where_traces_go_if_that_is_asked_for(tmp_path: Path) -> None:
    with collector() as received:
        for name, config in (("off", ""), ("on", '[telemetry]\notlp = "environment"\n')):
            (tmp_path / name).mkdir()
            with installation(tmp_path / name, config) as hf:
                hf.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = received.url
                hf.ready("work")
                hf.quick("run", "work", "--", "true")
                if name == "on":
                    traced(hf, received, "run", "work", "--", "true")
            assert bool(received.spans) is (name == "on"), (
                "an address in the environment alone turns nothing on"
            )
