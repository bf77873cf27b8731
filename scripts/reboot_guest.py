"""The half of scripts/reboot_trial.py that runs in the virtual machine.

reboot_guest.py serve         answers the trial on a virtio port: a line of JSON each way
reboot_guest.py populate      makes sessions, and notes on the disk how they must come back
reboot_guest.py verify        after the next boot: prints what came back wrong; exit code 1 then
reboot_guest.py checkpoints   saves, restores and forks sessions of this account, without a boot
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import holdfast.sync as holdfast
from holdfast.model.errors import HoldfastError, OutcomeUnknown

PORT = "/dev/virtio-ports/trial"
WORK = Path.home() / "work"
NOTES = Path.home() / "trial.json"
WAIT_S = 600.0  # software emulation is slow
LEFT = "sleep 4321"  # a program that no recovery may start again


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# ---------------------------------------------------------------- the line to the trial


def serve() -> None:
    port = os.open(PORT, os.O_RDWR)
    writing = threading.Lock()

    def answer(asked: dict[str, Any]) -> None:
        done = subprocess.run(
            ["/bin/bash", "-c", asked["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        text = done.stdout.decode(errors="replace")
        reply = {"id": asked["id"], "code": done.returncode, "text": text}
        with writing:
            data = json.dumps(reply).encode() + b"\n"
            while data:
                data = data[os.write(port, data) :]

    rest = b""
    while True:
        if not (piece := os.read(port, 1 << 16)):
            time.sleep(0.2)  # no trial is connected
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


# ---------------------------------------------------------------- before the boot ends


def ready(client: Any, name: str, contained: bool = False) -> Any:
    session = client.sessions.new(
        name, command=["/bin/bash"], cwd=str(WORK), contained=contained, exist_ok=True
    )
    session.wait("idle", timeout=WAIT_S)
    return session


def in_flight(round_: str) -> str:
    return f"echo {round_} >> {WORK}/once; sleep 5432"


def populate(client: Any) -> None:
    """One session for each way back; `round` tells this boot's values from earlier ones."""
    round_ = f"r{time.time_ns()}"
    (WORK / "deep").mkdir(parents=True, exist_ok=True)
    if all(one.name != "reader" for one in client.operators.list()):
        client.operators.add("reader")
        client.operators.grant("reader", "read")
    ready(client, "work").run(
        f"cd {WORK}/deep; export COLOUR={round_}; echo mark-{round_}; echo >> ../ran; {LEFT} &"
    )
    ready(client, "boxed", True).run(f"export COLOUR={round_}; X={round_}")
    if all(s.name != "saved" or s.state != "checkpointed" for s in client.sessions.list(all=True)):
        saved = ready(client, "saved", True)
        saved.run(f"X={round_}; sleep 9999 &")
        saved.checkpoint(stop=True)
    ready(client, "prints").run("(while :; do echo row-$((i += 1)); sleep 0.05; done) &")
    ready(client, "flight").start(in_flight(round_), once=round_)
    until = time.monotonic() + WAIT_S
    while not ((WORK / "once").exists() and round_ in (WORK / "once").read_text()):
        if time.monotonic() > until:
            raise SystemExit("the act in flight did not begin")
        time.sleep(0.2)
    time.sleep(3)  # the description of a session is at most this old
    listed = client.sessions.list(all=True)
    note = {
        "round": round_,
        "boot": boot(),
        "ran": (WORK / "ran").read_text(),
        "sessions": {one.name: [one.id, one.epoch, one.state] for one in listed},
    }
    with open(NOTES, "w") as file:
        json.dump(note, file)
        file.flush()
        os.fsync(file.fileno())


# ---------------------------------------------------------------- after the next boot


class Findings:
    def __init__(self) -> None:
        self.wrong = 0

    def check(self, good: bool, what: str) -> None:
        self.wrong += not good
        print("ok   " if good else "WRONG", what, flush=True)


def verify(client: Any) -> int:
    note, found = json.loads(NOTES.read_text()), Findings()
    round_ = note["round"]
    found.check(note["boot"] != boot(), "this is another boot")
    listed = {one.name: one for one in client.sessions.list(all=True)}
    for name, (id_, epoch, state) in note["sessions"].items():
        now = listed.get(name)
        told = f"{name}: {state}, incarnation {epoch}, is now {now and (now.state, now.epoch)}"
        saved = now is not None and now.state == "checkpointed"
        again = now is not None and now.state == "detached" and now.epoch == epoch + 1
        found.check(now is not None and now.id == id_ and (saved or again), told)
    work = client.sessions.get("work")
    work.wait("idle", timeout=WAIT_S)
    said = work.run("echo $COLOUR; pwd").output.split()
    found.check(said == [round_, f"{WORK}/deep"], f"variable and directory: {said}")
    view = work.view(history=2000)
    screen = "\n".join((*view.history, *view.lines))
    found.check(f"mark-{round_}" in screen, "the output of the lost incarnation is there")
    found.check("new incarnation" in screen and LEFT in screen, "the terminal says what ran")
    drained = listed["boxed"].state == "checkpointed"
    said = client.sessions.get("boxed").run("echo $COLOUR $X").output.split()
    found.check(said == [round_] * (1 + drained), f"boxed, drained: {drained}: {said}")
    try:
        saved = client.sessions.get("saved")
        saved.restore(fallback=False)
        said = saved.run("echo $X; jobs").output.split()
        found.check("Running" in said and said[0].startswith("r"), f"saved has its memory: {said}")
    except HoldfastError as e:
        found.check(False, f"saved: {e}")
    try:
        done = client.sessions.get("flight").run(in_flight(round_), once=round_, timeout=60)
        found.check(False, f"the act in flight: {done}")
    except OutcomeUnknown as e:
        found.check(True, f"the act in flight: {e}")
    found.check((WORK / "once").read_text().split().count(round_) == 1, "that act ran once")
    found.check((WORK / "ran").read_text() == note["ran"], "no command was entered again")
    running = subprocess.run(["pgrep", "-fx", LEFT], capture_output=True, text=True).stdout
    found.check(not running, f"no program was started again: {running!r}")
    for name in note["sessions"]:
        checked = subprocess.run(
            ["holdfast", "log", "verify", name], capture_output=True, text=True
        )
        found.check(checked.returncode == 0, f"the record of {name} {checked.stderr}")
    shown = client.operators.show("reader")
    found.check(bool(shown.envelopes), f"the rights of reader: {shown.envelopes}")
    return int(found.wrong > 0)


# ---------------------------------------------------------------- without a boot

# Memory, sums and a thread that waits.
PROGRAM = """import hashlib, math, os, threading, time
held = [os.urandom(1 << 20) for _ in range(16)]
told = hashlib.sha256(b"".join(held)).hexdigest()
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("BEGUN", flush=True)
while True:
    total = math.fsum(math.sin(n) * math.exp(-n / 7) for n in range(5000))
    right = hashlib.sha256(b"".join(held)).hexdigest() == told
    with open("count", "a") as file:
        print(total.hex(), right, file=file)
    time.sleep(1)
"""


def checkpoints(client: Any) -> int:
    found = Findings()
    contained = ("--contained", "--gate")
    kinds = {"gated": (*contained, "exec"), "ungated": (*contained, "input")}
    if os.getuid() == 0:
        kinds["plain"] = ("--plain", "--gate", "exec")
    for name, options in kinds.items():
        try:
            _round_trips(client, name, options, found)
        except HoldfastError as e:
            found.check(False, f"{name}: {e!r}")
    return int(found.wrong > 0)


def _round_trips(client: Any, name: str, options: tuple[str, ...], found: Findings) -> None:
    place = WORK / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "program.py").write_text(PROGRAM)
    (place / "count").write_text("")
    make = ["holdfast", "new", name, "-A", "--no-attach", *options, "--", "/bin/bash"]
    until = time.monotonic() + WAIT_S
    while subprocess.run(make, cwd=place).returncode and time.monotonic() < until:
        pass  # the host is slow to answer
    session = client.sessions.get(name)
    session.wait("idle", timeout=WAIT_S)
    session.run("X=first; sleep 4444 & python3 program.py &", timeout=WAIT_S)
    session.wait("text:BEGUN", timeout=WAIT_S)

    def goes_on(where: Any, step: str) -> None:
        said = where.run("echo $X; jobs; (exit 3)", timeout=WAIT_S)
        good = said.output.startswith("first") and said.output.count("Running") == 2
        found.check(good and said.exit_code == 3, f"{name}, {step}: {said.output!r}")
        where.run("n=$(wc -l <count); while [ $(wc -l <count) = $n ]; do sleep 1; done")
        rows = where.run("sort count | uniq -c").output.split()
        found.check(len(rows) == 3 and rows[2] == "True", f"{name}, {step}: goes on, {rows}")

    goes_on(session, "new")
    session.checkpoint()
    goes_on(session, "saved")
    session.halt()
    session.checkpoint(stop=True)
    session.restore(fallback=False)
    session.resume()
    goes_on(session, "saved in a halt, restored")
    session.wait("idle", timeout=WAIT_S)
    screen = session.view().lines
    session.checkpoint(stop=True)
    session.restore(fallback=False)
    found.check(session.view().lines == screen, f"{name}: the screen is as before")
    goes_on(session, "restored")
    if "--contained" in options:
        [branch] = session.fork().branches
        goes_on(client.sessions.get(branch.name), "forked")
        goes_on(session, "parent of a branch")
    session.end()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    with holdfast.connect(start=sys.argv[1] == "checkpoints") as connected:
        parts = {"populate": populate, "verify": verify, "checkpoints": checkpoints}
        sys.exit(parts[sys.argv[1]](connected))
