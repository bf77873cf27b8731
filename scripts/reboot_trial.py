"""Tries recovery with real reboots and power cuts, in a virtual machine. Run by a maintainer.

    python scripts/reboot_trial.py build DIRECTORY     makes Debian with this checkout (root)
    python scripts/reboot_trial.py run DIRECTORY [STEP ...]

Needs, from Debian: qemu-system-x86, qemu-utils, mmdebstrap, e2fsprogs. Without KVM QEMU emulates
the processor: a step then takes minutes, on a loaded machine far more.

Steps: reboot, poweroff, reset (sysrq-b), and cut (twice by default). A power cut is SIGKILL to
QEMU: the page cache of the guest is lost. Each boot writes into a new overlay of small clusters,
whose map QEMU keeps in memory until the guest flushes, so unflushed writes are lost too.
scripts/reboot_guest.py makes sessions before a step, and checks them after the next boot.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
INSIDE = "/opt/holdfast"
GUEST = f"{INSIDE}/.venv/bin/python {INSIDE}/scripts/reboot_guest.py"
PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,python3,python3-venv,linux-image-cloud-amd64,"
    "procps,iproute2,kmod,udev,passt,initramfs-tools"
)
# The machine has no hurry: emulation is slow. The timer check of the kernel fails under load.
KERNEL = (
    "root=/dev/vda rw console=ttyS0 panic=30 no_timer_check systemd.default_timeout_start_sec=1200"
)
UNIT = f"""[Unit]
Description=Commands of the trial
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=1
ExecStart={GUEST} serve
Environment=HOME=/root PATH={INSIDE}/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin
[Install]
WantedBy=multi-user.target
"""
STEPS = {
    "reboot": "systemctl reboot",
    "poweroff": "systemctl poweroff",
    "reset": "echo 1 >/proc/sys/kernel/sysrq; echo b >/proc/sysrq-trigger",
    "cut": "",
}
WAIT_S = 3600.0


def call(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True)


def build(place: Path) -> None:
    root = place / "root"
    place.mkdir(parents=True, exist_ok=True)
    call("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root)
    target = root / INSIDE.lstrip("/")
    target.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", CHECKOUT, "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", target], stdin=archive.stdout, check=True)
    (target / ".cache").mkdir()
    call("cp", "-a", f"{CHECKOUT}/.cache/criu", target / ".cache")
    call("cp", "/etc/resolv.conf", root / "etc/resolv.conf")
    inside = f"cd {INSIDE} && python3 -m venv .venv && .venv/bin/pip install -q -e ."
    call("chroot", root, "sh", "-c", f"{inside} && touch .venv/.installed")
    call("chroot", root, f"{INSIDE}/.venv/bin/python", "-m", "compileall", "-q", f"{INSIDE}/src")
    (root / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 1\n")
    (root / "etc/systemd/system/trial.service").write_text(UNIT)
    call("chroot", root, "systemctl", "enable", "trial.service")
    for name, pattern in (("kernel", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        call("cp", next((root / "boot").glob(pattern)), place / name)
    call("truncate", "-s", "4G", place / "disk.raw")
    call("mkfs.ext4", "-q", "-F", "-d", root, place / "disk.raw")


class Machine:
    """The virtual machine, and the line to its half of the trial."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked = place, 0
        self.socket, self.overlay = place / "socket", place / "overlay.qcow2"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        call(
            *("qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4096"),
            *("-F", "raw", "-b", self.place / "disk.raw", self.overlay),
        )
        drive = f"file={self.overlay},if=virtio,format=qcow2,cache=writeback,l2-cache-size=16M"
        command = [
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-smp", "2", "-m", "2048", "-display", "none", "-nic", "none", "-monitor", "none"),
            *("-serial", f"file:{self.place}/console.log", "-drive", drive),
            *("-device", "virtio-rng", "-device", "virtio-serial"),
            *("-chardev", f"socket,id=line,path={self.socket},server=on,wait=off"),
            *("-device", "virtserialport,chardev=line,name=trial"),
            *("-kernel", f"{self.place}/kernel", "-initrd", f"{self.place}/initrd"),
            *("-append", KERNEL),
        ]
        self.process = subprocess.Popen(["nice", *command], stdin=subprocess.DEVNULL)
        self.connect()

    def connect(self) -> None:
        """Until the guest answers."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            try:
                self.line = socket.socket(socket.AF_UNIX)
                self.line.connect(str(self.socket))
                self.rest = b""
                self.ask("true", 60.0)  # a loaded machine takes long
                return
            except OSError:
                self.line.close()
                time.sleep(0.5)
        raise SystemExit("the machine does not answer; see console.log")

    def send(self, command: str) -> int:
        self.asked += 1
        self.line.sendall(json.dumps({"id": self.asked, "command": command}).encode() + b"\n")
        return self.asked

    def ask(self, command: str, most_s: float = WAIT_S) -> dict[str, Any]:
        number = self.send(command)
        until = time.monotonic() + most_s
        while True:
            self.line.settimeout(max(until - time.monotonic(), 0.01))
            if not (piece := self.line.recv(1 << 16)):
                raise ConnectionResetError("the line is closed")
            *lines, self.rest = (self.rest + piece).split(b"\n")
            for line in lines:
                reply: dict[str, Any] = json.loads(line)
                if reply["id"] == number:
                    return reply

    def boot(self) -> str:
        return str(self.ask("cat /proc/sys/kernel/random/boot_id")["text"])

    def over(self) -> None:
        """After QEMU has ended: the disk has what reached it, and no more."""
        self.process.wait()
        subprocess.run(["qemu-img", "check", "-q", "-r", "all", self.overlay], check=False)
        call("qemu-img", "commit", "-q", self.overlay)
        self.overlay.unlink()

    def leave(self, step: str) -> None:
        """Take the step, and return in the next boot."""
        before = self.boot()
        if step == "cut":
            os.kill(self.process.pid, signal.SIGKILL)
        else:
            self.send(f"sleep 1; {STEPS[step]}")
        if step in ("cut", "poweroff"):
            self.over()
            return self.start()
        self.connect()
        while self.boot() == before:
            time.sleep(5)
            self.connect()


def run(place: Path, steps: list[str]) -> int:
    machine, failed = Machine(place), 0
    machine.start()
    print(machine.ask("uname -r; holdfast service install --system; holdfast doctor")["text"])
    for step in steps:
        print(f"== {step}", flush=True)
        made = machine.ask(f"{GUEST} populate")
        machine.leave(step)
        found = machine.ask(f"systemctl start holdfast-host; {GUEST} verify")
        print(made["text"], found["text"], sep="", flush=True)
        failed += bool(made["code"] or found["code"])
    machine.ask("sync")
    machine.process.kill()
    machine.over()
    return int(failed > 0)


if __name__ == "__main__":
    what, directory = sys.argv[1], Path(sys.argv[2]).resolve()
    if what == "build":
        build(directory)
    else:
        sys.exit(run(directory, sys.argv[3:] or ["reboot", "cut", "poweroff", "reset", "cut"]))
