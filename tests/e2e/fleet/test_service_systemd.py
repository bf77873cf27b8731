"""`holdfast service` under a private systemd, in namespaces over this machine's files.

An ordinary account exists in there. Needs root, unshare, overlayfs and a cgroup v2 file system; the
test changes nothing outside of the namespaces (kernel settings, which no namespace holds, are
mounted read-only: systemd would set some). Left out of the ordinary test command, because sandboxes
differ: `pytest -m soak tests/e2e/fleet/test_service_systemd.py`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import eventually

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
SOURCE = Path(__file__).resolve().parents[3] / "src"
SYSTEMD = "/lib/systemd/systemd"
ACCOUNT, UID = "holdfasttester", 61234

BOOT = """set -e
mount --make-rprivate /
mount -t tmpfs none {base}
mkdir {base}/upper {base}/work {base}/root
mount -t overlay overlay -o lowerdir=/,upperdir={base}/upper,workdir={base}/work {base}/root
cd {base}/root
mount --rbind {source} ./{source}
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for d in run tmp dev; do mount -t tmpfs none $d; done
for n in null zero full random urandom tty; do touch dev/$n; mount --bind /dev/$n dev/$n; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs none dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
printf 'account required pam_permit.so\\nsession optional pam_systemd.so\\n' >etc/pam.d/systemd-user
grep -q '^{account}:' etc/passwd ||
    echo '{account}:x:{uid}:{uid}::/home/{account}:/bin/bash' >>etc/passwd
grep -q '^{account}:' etc/group || echo '{account}:x:{uid}:' >>etc/group
mkdir -p home/{account}
chown {uid}:{uid} home/{account}
for d in {closed}; do chmod o+x ./$d; done
rm -f etc/systemd/system/*.wants/*
mount --make-rshared .
exec chroot . /usr/bin/env -i container=holdfast PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} \\
    --system --unit=multi-user.target --log-target=null --show-status=no
"""


def closed() -> list[str]:
    """Directories on the way to the interpreter and the code that the account could not enter."""
    found: list[str] = []
    for path in (
        sys.executable,
        os.path.realpath(sys.executable),
        *filter(None, sys.path),
        str(SOURCE),
    ):
        for one in (Path(path), *Path(path).parents):
            if one.is_dir() and not one.stat().st_mode & stat.S_IXOTH and str(one) not in found:
                found.append(str(one))
    return found


class Machine:
    def __init__(self, base: Path) -> None:
        mount = next(
            (
                line.split()[1]
                for line in Path("/proc/mounts").read_text().splitlines()
                if line.split()[2] == "cgroup2"
            ),
            None,
        )
        if (
            os.geteuid()
            or mount is None
            or not Path(SYSTEMD).exists()
            or not shutil.which("unshare")
            or not shutil.which("nsenter")
        ):
            pytest.skip("needs root, systemd, unshare, nsenter and a cgroup v2 file system")
        self.group = Path(mount, f"holdfast-private-{secrets.token_hex(4)}")
        self.group.mkdir()
        script = BOOT.format(
            base=base,
            source=SOURCE,
            account=ACCOUNT,
            uid=UID,
            closed=" ".join(closed()),
            systemd=SYSTEMD,
        )
        self.log = (base.parent / "boot.log").open("w+b")
        self.process = subprocess.Popen(
            [
                "sh",
                "-c",
                f"echo $$ >{self.group}/cgroup.procs; exec unshare -m -p -f -C -i -u -n "
                '--kill-child sh -c "$0"',
                script,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        try:
            self.init = eventually(self._init, "systemd to begin")
            eventually(
                lambda: (
                    self.root("systemctl", "is-system-running").strip() in ("running", "degraded")
                ),
                "the machine to run",
            )
        except BaseException as e:
            self.log.seek(0)
            said = self.log.read().decode("utf-8", "replace")
            self.close()
            if isinstance(e, AssertionError):
                pytest.skip(f"no systemd of its own can be started here: {said[-500:] or e}")
            raise

    def _init(self) -> int:
        assert self.process.poll() is None, "it ended"
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return (
            int(children[0])
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd"
            else 0
        )

    def _inside(self, words: tuple[str, ...], account: bool) -> subprocess.CompletedProcess[str]:
        become = (
            ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
            if account
            else []
        )
        home = f"/home/{ACCOUNT}" if account else "/root"
        env = [
            f"HOME={home}",
            f"USER={ACCOUNT if account else 'root'}",
            "SHELL=/bin/bash",
            "TERM=xterm",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            f"PYTHONPATH={SOURCE}",
            *([f"XDG_RUNTIME_DIR=/run/user/{UID}"] if account else []),
        ]
        return subprocess.run(
            [
                "nsenter",
                "-t",
                str(self.init),
                "-m",
                "-p",
                "-C",
                "-i",
                "-u",
                "-n",
                "-r",
                "-w",
                *become,
                "env",
                "-i",
                *env,
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            cwd="/",
        )

    def root(self, *words: str) -> str:
        return self._inside(words, False).stdout

    def user(self, *words: str) -> str:
        done = self._inside(words, True)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def hf(self, *words: str, **how: Any) -> str:
        return self.user(sys.executable, "-m", "holdfast", *words, **how)

    def ls(self) -> dict[str, int]:
        return {
            s["name"]: s["pid"]
            for s in json.loads(self.hf("ls", "--json"))
            if s["state"] in ("live", "detached", "halted")
        }

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

        def gone() -> bool:
            try:
                (self.group / "cgroup.kill").write_text("1")
                for directory, _, _ in os.walk(self.group, topdown=False):
                    os.rmdir(directory)
            except OSError:
                return not self.group.exists()
            return True

        eventually(gone, "the private machine to go")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    base = tmp_path / "m"
    base.mkdir()
    made = Machine(base)
    try:
        yield made
    finally:
        made.close()


def test_s3_sessions_of_an_ordinary_account_outlive_its_units(machine: Machine) -> None:
    assert (
        machine.root(
            "sh", "-c", "(echo 0 >/proc/sys/fs/protected_regular) 2>/dev/null || echo refused"
        )
        == "refused\n"
    ), "this machine's own settings are out of its reach"
    machine.root("loginctl", "enable-linger", ACCOUNT)
    eventually(
        lambda: machine.root("systemctl", "is-active", f"user@{UID}").strip() == "active",
        "the account's manager",
    )
    said = machine.hf("service", "install")
    assert "lingering" not in said
    machine.hf("new", "work", "--no-attach")
    inside = machine.hf(
        "run",
        "work",
        "--",
        "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status; tail -1 /proc/self/cgroup",
    )
    assert (
        "NoNewPrivs:\t0" in inside
        and "Seccomp:\t0" in inside
        and "holdfast-nursery.service/holdfast-" in inside
    )
    host = machine.user(
        "systemctl", "--user", "show", "holdfast-host", "-p", "MainPID", "--value"
    ).strip()
    hardened = machine.root("cat", f"/proc/{host}/status")
    assert "NoNewPrivs:\t1" in hardened and "Seccomp:\t2" in hardened
    assert "cgroup freeze" in machine.hf("halt", "work")
    machine.hf("resume", "work")
    before = machine.ls()
    for act in (
        ("restart", "holdfast-host"),
        ("reload", "holdfast-host"),
        ("restart", "holdfast-nursery"),
        ("kill", "--kill-who=main", "-s", "KILL", "holdfast-host"),
        ("kill", "--kill-who=main", "-s", "KILL", "holdfast-nursery"),
    ):
        machine.user("systemctl", "--user", *act)
        assert machine.ls() == before, act
    machine.user("systemctl", "--user", "stop", "holdfast-host")
    assert machine.root("cat", f"/proc/{before['work']}/comm").strip() == "bash"
    assert machine._inside((sys.executable, "-m", "holdfast", "ls"), True).returncode == 5, (
        "a stop is a stop"
    )
    machine.hf("up", "--detach")
    assert (
        machine.ls() == before
        and machine.user("systemctl", "--user", "is-active", "holdfast-host").strip() == "active"
    )
    machine.hf("new", "second", "--no-attach")
    assert "cgroup freeze" in machine.hf("halt", "second")
    machine.hf("resume", "second")
    machine.hf("service", "uninstall")
    machine.hf("up", "--detach")
    assert machine.ls().keys() == {"work", "second"}
    machine.hf("service", "install")
    assert machine.ls().keys() == {"work", "second"}, (
        "a host started by hand gives way, sessions do not notice"
    )


def test_a_host_of_the_machine_for_an_account(machine: Machine) -> None:
    hf = (sys.executable, "-m", "holdfast", "service")
    assert "holdfast-host.service" in machine.root(*hf, "install", "--system", "--account", ACCOUNT)
    machine.hf("new", "work", "--no-attach")
    assert "cgroup freeze" in machine.hf("halt", "work")
    machine.hf("resume", "work")
    assert "wrote" in machine.hf("run", "work", "--", "touch ~/file && echo wrote")
    before = machine.ls()
    machine.root("systemctl", "restart", "holdfast-host")
    assert machine.ls() == before
    host = machine.root("systemctl", "show", "holdfast-host", "-p", "MainPID", "--value").strip()
    closed = machine.root(
        "nsenter", "-t", host, "-m", "sh", "-c", f"touch /home/{ACCOUNT}/not 2>&1 || echo refused"
    )
    assert "refused" in closed, "the host itself writes to its home only"
    machine.root(*hf, "uninstall", "--system", "--account", ACCOUNT)
    machine.hf("up", "--detach")
    assert machine.ls() == before


def test_a_relay_of_the_machine_has_its_certificate_from_the_manager_and_root_makes_its_tokens(
    machine: Machine, tmp_path: Path
) -> None:
    from tests.support.commands.certificates import certificate

    chain, key = certificate(tmp_path, "relay.example", 1)
    for path in (chain, key):
        machine.root(
            "sh",
            "-c",
            f"mkdir -p /etc/relay; umask 077; echo '{path.read_text()}' >/etc/relay/{path.name}",
        )
    machine.root(
        "sh",
        "-c",
        "chmod 755 /etc/relay; chmod 644 /etc/relay/chain.pem; grep -q relay.example /etc/hosts || "
        "echo '127.0.0.1 relay.example' >>/etc/hosts",
    )
    hf = (sys.executable, "-m", "holdfast")
    done = machine._inside(
        (
            *hf,
            "service",
            "install",
            "--system",
            "--relay",
            "--",
            "--listen",
            "127.0.0.1:443",
            "--tls-cert",
            "/etc/relay/chain.pem",
            "--tls-key",
            "/etc/relay/key.pem",
            "--name",
            "relay.example",
        ),
        False,
    )
    assert done.returncode == 0 and "as root: holdfast relay token" in done.stdout, (
        done.stdout,
        done.stderr,
        machine.root("systemctl", "status", "holdfast-relay"),
    )
    pid = machine.root("systemctl", "show", "holdfast-relay", "-p", "MainPID", "--value").strip()
    status = machine.root("cat", f"/proc/{pid}/status")
    assert "Uid:\t0\t" not in status and "NoNewPrivs:\t1" in status, (
        "it is an account of its own, and cannot read the key where it lies"
    )
    token = machine.root(*hf, "relay", "token").strip()
    assert token.startswith("hfr_")
    assert machine._inside((*hf, "relay", "token"), True).stdout.strip() != "", (
        "another account means its own relay, not this one"
    )
    owners = machine.root(
        "sh", "-c", "stat -c %u /var/lib/private/holdfast-relay /var/lib/private/holdfast-relay/*"
    ).split()
    assert len(set(owners)) == 1 and owners[0] != "0", "files keep their owner"
    machine.user("sh", "-c", f"umask 077; echo {token} >~/token")
    connected = json.loads(
        machine.hf(
            "host",
            "connect",
            "wss://relay.example",
            "--token",
            f"@/home/{ACCOUNT}/token",
            "--ca",
            "/etc/relay/chain.pem",
            "--json",
        )
    )
    assert connected["relays"][0]["state"] == "registered"
    machine.root("systemctl", "restart", "holdfast-relay")
    assert machine.root(*hf, "relay", "token", "ls", "--json").count('"valid"') == 1
    eventually(
        lambda: (
            json.loads(machine.hf("host", "ls", "--json"))["relays"][0]["state"] == "registered"
        ),
        "the host to be back",
    )
    machine.root(*hf, "service", "uninstall", "--system", "--relay")
    machine.hf("down")
