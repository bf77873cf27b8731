"""Tries recovery with real reboots and power cuts, in a virtual machine. Run by a maintainer.

    python scripts/reboot_trial.py build DIRECTORY [MACHINE]
        makes Debian with this checkout; as root
    python scripts/reboot_trial.py run DIRECTORY [STEP ...]

MACHINE is x86_64 or aarch64; by default this machine's. Needs, from Debian: qemu-system-x86 or
qemu-system-arm, qemu-utils, mmdebstrap, e2fsprogs; to build another machine also qemu-user-static,
arch-test and a mounted binfmt_misc. Without KVM QEMU emulates the processor: a step then takes
minutes, on a loaded machine far more.

Steps: checkpoints (without a boot), reboot, poweroff, reset (sysrq-b), and cut (twice by default).
A power cut is SIGKILL to QEMU: the page cache of the guest is lost. Each boot writes into a new
overlay of small clusters, whose map QEMU keeps in memory until the guest flushes, so unflushed
writes are lost too.
scripts/reboot_guest.py makes sessions before a step, and checks them after the next boot.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
INSIDE = "/opt/holdfast"
GUEST = f"{INSIDE}/.venv/bin/python {INSIDE}/scripts/reboot_guest.py"
PACKAGES = (
    "systemd,systemd-sysv,dbus,libpam-systemd,python3,python3-venv,procps,iproute2,kmod,udev,"
    "passt,initramfs-tools,curl,ca-certificates"
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


class Machine(NamedTuple):
    architecture: str  # Debian's name
    kernel: str  # the arguments of this kind
    program: tuple[str, ...]  # QEMU


# The timer check of the kernel fails under load. A processor with SVE would have some checkpoints
# refused (docs/reference/checkpoints.md).
MACHINES = {
    "x86_64": Machine(
        "amd64", "console=ttyS0 no_timer_check", ("qemu-system-x86_64", "-M", "q35", "-cpu", "max")
    ),
    "aarch64": Machine(
        "arm64",
        "console=ttyAMA0",
        ("qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a72"),
    ),
}
# The machine has no hurry: emulation is slow.
KERNEL = "root=/dev/vda rw panic=30 systemd.default_timeout_start_sec=1200"
STEPS = {
    "reboot": "systemctl reboot",
    "poweroff": "systemctl poweroff",
    "reset": "echo 1 >/proc/sys/kernel/sysrq; echo b >/proc/sysrq-trigger",
    "cut": "",
}
WAIT_S = 3600.0


def call(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True)


def build(place: Path, kind: str) -> None:
    root, machine = place / "root", MACHINES[kind]
    place.mkdir(parents=True, exist_ok=True)
    (place / "machine").write_text(kind)
    packages = f"{PACKAGES},linux-image-cloud-{machine.architecture}"
    call(
        *("mmdebstrap", "--variant=minbase", f"--architectures={machine.architecture}"),
        *(f"--include={packages}", "bookworm", root),
    )
    target = root / INSIDE.lstrip("/")
    target.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", CHECKOUT, "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", target], stdin=archive.stdout, check=True)
    call("cp", "/etc/resolv.conf", root / "etc/resolv.conf")
    # Not as root, because CRIU is tried then: another kernel runs here.
    call("install", "-d", "-o", "nobody", target / ".cache")
    call("chroot", "--userspec=nobody", root, f"{INSIDE}/scripts/criu")
    call("chroot", root, "chown", "-R", "root:", f"{INSIDE}/.cache")
    call("chroot", root, "useradd", "-m", "-s", "/bin/bash", "user")
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


class Trial:
    """The virtual machine, and the line to its half of the trial."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked = place, 0
        self.machine = MACHINES[(place / "machine").read_text()]
        self.socket, self.overlay = place / "socket", place / "overlay.qcow2"

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        call(
            *("qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4096"),
            *("-F", "raw", "-b", self.place / "disk.raw", self.overlay),
        )
        drive = f"file={self.overlay},if=virtio,format=qcow2,cache=writeback,l2-cache-size=16M"
        command = [
            *(*self.machine.program, "-accel", "tcg,thread=multi", "-smp", "2", "-m", "2048"),
            *("-display", "none", "-nic", "none", "-monitor", "none"),
            *("-serial", f"file:{self.place}/console.log", "-drive", drive),
            *("-device", "virtio-rng", "-device", "virtio-serial"),
            *("-chardev", f"socket,id=line,path={self.socket},server=on,wait=off"),
            *("-device", "virtserialport,chardev=line,name=trial"),
            *("-kernel", f"{self.place}/kernel", "-initrd", f"{self.place}/initrd"),
            *("-append", f"{KERNEL} {self.machine.kernel}"),
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
    machine, failed = Trial(place), 0
    machine.start()
    print(machine.ask("uname -r; holdfast service install --system; holdfast doctor")["text"])
    for step in steps:
        print(f"== {step}", flush=True)
        if step == "checkpoints":
            for account in ("root", "user"):
                inside = f"PATH={INSIDE}/.venv/bin:$PATH {GUEST} checkpoints"
                found = machine.ask(f"runuser -l {account} -c '{inside}'")
                print(f"-- {account}", found["text"], sep="\n", end="", flush=True)
                failed += bool(found["code"])
            continue
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
        build(directory, *(sys.argv[3:] or [platform.machine()]))
    else:
        sys.exit(run(directory, sys.argv[3:] or ["reboot", "cut", "poweroff", "reset", "cut"]))
