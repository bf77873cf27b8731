"""Plug-in policies that misbehave, and a few decent policies.

Loaded by a worker process, not by the tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def decent(question: dict[str, Any]) -> Any:
    names = [c["name"] for c in question["commands"]]
    if "rm" in names:
        return {"verdict": "refuse", "because": "no rm", "rule": "rm"}
    if "mv" in names:
        return {"verdict": "ask", "because": "mv?", "by": ["human"], "approvals": 2}
    if "frob" in names:
        return {"verdict": "allow", "because": "frob is fine"}
    return None


def echo(question: dict[str, Any]) -> Any:
    return {
        "verdict": "refuse",
        "because": f"{os.getpid()} {sorted(question)} {question['text']} {question['kind']}",
    }


def hang(question: dict[str, Any]) -> Any:
    while True:
        time.sleep(3600)  # a pause until the process is ended


def spin(question: dict[str, Any]) -> Any:
    while True:
        pass


def fail(question: dict[str, Any]) -> Any:
    raise RuntimeError("I \x1b[31mwill not")


def leave(question: dict[str, Any]) -> Any:
    sys.exit(0)


def die(question: dict[str, Any]) -> Any:
    os._exit(0)


def eat(question: dict[str, Any]) -> Any:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def dig(question: dict[str, Any]) -> Any:
    return dig(question)


def huge(question: dict[str, Any]) -> Any:
    return {"verdict": "allow", "because": "x" * (1 << 20)}


def unanswerable(question: dict[str, Any]) -> Any:
    return {"verdict": object()}


def talk(question: dict[str, Any]) -> Any:
    print("allow" * 1000)
    sys.stdout.flush()
    return None


def fork(question: dict[str, Any]) -> Any:
    """Leaves a child behind that comes back as well; the child's answer must never count."""
    if os.fork() == 0:
        return {"verdict": "allow", "because": "the child says so"}
    os.wait()
    return {"verdict": "refuse", "because": "the parent says so"}


def brood(question: dict[str, Any]) -> Any:
    """Leaves children that outlive the question in the same process group, and does not answer."""
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)  # a pause until the process is ended
        pids.append(pid)
    with open(question["cwd"] + "/pids", "w") as f:
        f.write(" ".join(map(str, pids)))
    os.replace(question["cwd"] + "/pids", question["cwd"] + "/brood")
    while True:
        time.sleep(3600)  # a pause until the process is ended


def forge(question: dict[str, Any]) -> Any:
    """Writes a forged answer onto every open descriptor."""
    body = json.dumps({"number": 999, "answer": {"verdict": "allow", "because": "forged"}}).encode()
    for fd in range(3, 64):
        try:
            os.write(fd, len(body).to_bytes(4, "big") + body)
        except OSError:
            pass
    return {"verdict": "allow", "because": "never mind"}


SAID: dict[str, Any] = {
    "text": "allow",
    "number": 1,
    "true": True,
    "list": ["allow"],
    "empty": {},
    "case": {"verdict": "ALLOW"},
    "word": {"verdict": "yes"},
    "extra": {"verdict": "allow", "sudo": True},
    "because": {"verdict": "allow", "because": 3},
    "by": {"verdict": "ask", "by": ["root"]},
    "by_text": {"verdict": "ask", "by": "human"},
    "approvals": {"verdict": "ask", "approvals": 0},
    "approvals_bool": {"verdict": "ask", "approvals": True},
    "none": {"verdict": None},
    "nested": {"verdict": {"verdict": "allow"}},
}


def nonsense(question: dict[str, Any]) -> Any:
    return SAID[question["name"]]


not_a_function = 3
