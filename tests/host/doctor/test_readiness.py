"""What the doctor says of the store of leases and of moves."""

from __future__ import annotations

import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.host.doctor.report import Finding, run_doctor
from holdfast.host.fleet import readiness
from tests.support.recovery.checkpoint import criu
from tests.support.recovery.etcd import cluster, needs_etcd


def found(home: Path, config: str = "", tool: str = "") -> dict[str, Finding]:
    (home / "other.toml").write_text(config)
    findings = run_doctor(home, readiness.CHECKS, criu=tool, config=str(home / "other.toml"))
    return {finding.id: finding for finding in findings}


def etcd(*endpoints: str) -> str:
    return f'[lease]\nstore = "etcd"\netcd_endpoints = {json.dumps(endpoints)}\n'


def test_r3_without_etcd_leases_are_for_homes_of_this_machine(tmp_path: Path) -> None:
    leases = found(tmp_path)["leases"]
    assert leases.ok and "SQLite" in leases.detail and "CLOCK_BOOTTIME" in leases.detail


def test_r3_etcd_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nothing listens there
        leases = found(tmp_path, etcd(f"http://127.0.0.1:{free.getsockname()[1]}"))["leases"]
    assert leases.ok is False and "etcd does not answer" in leases.detail and leases.fix


@pytest.mark.parametrize(
    ("version", "good"), [("3.4.23", False), ("3.5.15", False), ("3.6.1", True)]
)
def test_r3_an_etcd_with_faults_in_leases_is_refused(
    tmp_path: Path, version: str, good: bool
) -> None:
    class Member(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            responses: list[object] = [{"response_range": {}}] * (self.path == "/v3/kv/txn")
            body = json.dumps({"version": version, "responses": responses}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Member)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        leases = found(tmp_path, etcd(f"http://127.0.0.1:{server.server_port}"))["leases"]
    finally:
        server.shutdown()
        server.server_close()
    assert leases.ok is good and f"etcd {version} answers" in leases.detail
    assert bool(leases.fix) is not good


@needs_etcd
def test_r3_a_real_etcd_is_found_good(tmp_path: Path) -> None:
    with cluster(tmp_path / "etcd", 1) as made:
        leases = found(tmp_path, etcd(*made.endpoints))["leases"]
    assert leases.ok, leases


def test_r2_the_courier_and_the_machines_are_named(tmp_path: Path) -> None:
    criu()
    tool = os.environ.get("HOLDFAST_CRIU", "")
    move = found(tmp_path, tool=tool)["move"]
    assert move.ok and "machines trust" in move.detail


def test_r2_a_machine_without_criu_cannot_move_sessions(tmp_path: Path) -> None:
    move = found(tmp_path, tool=str(tmp_path / "none"))["move"]
    assert move.ok is False and "neither leave nor arrive" in move.detail and move.fix


def test_r2_damaged_trust_is_told(tmp_path: Path) -> None:
    criu()
    (tmp_path / "trusted.json").write_text("no json")
    move = found(tmp_path, tool=os.environ.get("HOLDFAST_CRIU", ""))["move"]
    assert move.ok is False and "trusted.json" in move.detail
