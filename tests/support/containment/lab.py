"""A default installation in a home like a person's, with a contained session to attack it from.

Holdfast is installed in an environment that the user owns, as pipx and uv do, and the host runs
from there. The home has start files, keys and browser data; `~/project` is the workspace. Attacks
are short scripts in the workspace that the session runs. The tests look at the effects outside.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.host.policy.shfmt import find_shfmt
from tests.support.installation import Installation, alive, eventually
from tests.support.ordinary_user import SITE_PACKAGES

ROOT = os.getuid() == 0
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
SECRET = f"secret-{secrets.token_hex(8)}"
RUN_S, LOOKS, END_S = 60.0, 10, 20.0
RAN = "the attack was tried"
# Root makes no user namespace inside: its uid 0 may not be mapped. Another user does.
OTHER_USER = "setpriv --reuid=65534 --regid=65534 --clear-groups " if ROOT else ""
SECRETS = (
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".config/gh/hosts.yml",
    ".config/google-chrome/Default/Cookies",
    ".mozilla/firefox/x.default/logins.json",
    ".gnupg/private-keys-v1.d/key",
    ".docker/config.json",
    ".kube/config",
    ".netrc",
    ".bash_history",
    "other-project/.env",
)
PRELUDE = """
import ctypes, fcntl, os, re, select, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def check(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def put(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, text.encode())
    finally:
        os.close(fd)
def tries(action, *arguments):
    try:
        return action(*arguments)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as e:
        return f"{type(e).__name__} {e}"
"""

# Calls with up to four arguments, as this program makes them, by x32's numbers, or as a 32-bit
# program makes them: push rbx; mov eax, edi; mov ebx, esi; xchg edx, ecx; mov esi, r8d; int 0x80;
# pop rbx; cdqe; ret.
CALLS = """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('53 89f8 89f3 87ca 4489c6 cd80 5b 4898 c3'))
by_32 = ctypes.CFUNCTYPE(*[ctypes.c_long] * 6)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
def called(way, number, number_32, *arguments):
    arguments = [*arguments, 0, 0, 0, 0][:4]
    if way == '32-bit':
        result = by_32(number_32, *arguments)
        return (-1, -result) if -4096 < result < 0 else (result, 0)
    ctypes.set_errno(0)
    if way == 'x32':
        number |= 0x40000000
    return libc.syscall(*map(ctypes.c_long, (number, *arguments))), ctypes.get_errno()
"""


class Lab(Installation):
    """An installation without HOLDFAST_HOME; `home` is where its state lies by default."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, home=base / "user/.local/state/holdfast")
        self.began, self.damaged = time.time(), False
        self.project = self.user / "project"
        # With writable hooks, programs may also make mount namespaces: the weakest walls.
        hooks = f"{self.project}/.git/hooks:rw"
        self.workspace = ("--cwd", str(self.project), "--share", hooks)
        self.environment = self.user / ".local/share/uv/tools/holdfast"
        self.bin = self.user / ".local/bin"
        del self.env["HOLDFAST_HOME"], self.env["PYTHONPATH"]
        self.env["HOME"] = str(self.user)
        self.env["PATH"] = f"{self.bin}:{self.environment}/bin:/usr/local/bin:/usr/bin:/bin"
        self.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.relay = True  # no configuration is written: the directory does not exist yet
        self._furnish()
        self._install()

    def _furnish(self) -> None:
        for name in SECRETS:
            self.plant(self.user / name, SECRET)
        for name in (".bashrc", ".profile"):
            (self.user / name).write_text("PS1='$ '\n")
        self.bin.mkdir(parents=True)
        self.project.mkdir()
        subprocess.run(["git", "init", "-q", str(self.project)], check=True)

    def _install(self) -> None:
        """Holdfast as an installer lays it out; the libraries stay where the tests have them."""
        venv.create(self.environment, symlinks=True)
        self.python = str(self.environment / "bin/python")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(self.environment)}))
        self.package = site / "holdfast"
        shutil.copytree(Path(holdfast.__file__).parent, self.package, ignore=_unreadable)
        compileall.compile_dir(self.package, quiet=2)
        (site / "libraries.pth").write_text(f"{SITE_PACKAGES}\n")
        self.shfmt = self.environment / "bin/shfmt"
        shutil.copy(str(find_shfmt()), self.shfmt)
        (self.bin / "holdfast").symlink_to(self.environment / "bin/holdfast")

    @staticmethod
    def plant(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def processes(self) -> dict[int, str]:
        """Every process of this installation: its environment names the home of this user."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                if f"HOME={self.user}".encode() in environment and alive(int(entry)):
                    found[int(entry)] = words(int(entry))
        return found

    def close(self) -> None:
        """An attack that succeeded may have damaged the state: then no command can end it."""
        if self.damaged:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.home, ignore_errors=True)
        super().close()

    # ------------------------------------------------------------ attacks

    def sh(self, script: str, session: str = "lab", *identity: str) -> str:
        """The output of a shell script inside."""
        return self._inside("sh", "try.sh", f"{script}\necho; echo {RAN}", session, identity)

    def py(self, code: str, session: str = "lab", *identity: str, stdin: str = "/dev/null") -> str:
        """The output of Python code inside."""
        script = f"{PRELUDE}{code}\nprint('\\n{RAN}')"
        return self._inside(PYTHON, "try.py", script, session, identity, stdin)

    def _inside(
        self,
        interpreter: str,
        name: str,
        script: str,
        session: str,
        identity: tuple[str, ...],
        stdin: str = "/dev/null",
    ) -> str:
        """An attack that could not be tried proves nothing: its last line must be reached."""
        self.plant(self.project / name, script)
        command = f"{interpreter} {self.project}/{name} <{stdin} 2>&1"
        out = self.output(command, session, *identity)
        assert f"\n{RAN}\n" in out, out
        return out

    def output(self, command: str, session: str = "lab", *identity: str) -> str:
        """The output of a command line of the session's shell."""
        how = ("--timeout", f"{RUN_S:g}", "--json", "--")
        done = self.attempt(*identity, "run", session, *how, command)
        assert "data" in done.json, (done.err, self.quick("events", session)[-3000:])
        return str(done.json["data"]).replace("\r\n", "\n")

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Nothing of the home changes meanwhile, but the workspace and Holdfast's own state."""
        before = self.files()
        try:
            yield
        except BaseException:
            self.damaged = True
            raise
        after = self.files()
        changed = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        self.damaged |= bool(changed)
        assert not changed, sorted(changed)

    def files(self) -> dict[str, tuple[int, ...]]:
        found = dict[str, tuple[int, ...]]()
        apart = {str(self.project), str(self.home)}
        for directory, names, others in os.walk(self.user):
            names[:] = [name for name in names if f"{directory}/{name}" not in apart]
            for path in (directory, *(f"{directory}/{name}" for name in others)):
                info = os.lstat(path)
                found[path] = (
                    info.st_mode,
                    info.st_ino,
                    info.st_nlink,
                    info.st_uid,
                    info.st_size,
                    info.st_mtime_ns,
                )
        return found

    # ------------------------------------------------------------ processes of a session

    def shell_of(self, session: str) -> int:
        """The outside pid of a session's first program."""
        return int(self.get(session)["pid"])

    def init_of(self, session: str) -> int:
        """The outside pid of the process that is 1 inside."""
        pid = self.shell_of(session)
        while numbers_inside(pid)[-1] != 1:
            pid = parent_of(pid)
        return pid

    def members(self, session: str) -> list[int]:
        """Every process in the pid namespace of a session, by its outside pid."""
        init = self.init_of(session)
        return [init, *below(init)]


def _unreadable(directory: str, names: list[str]) -> list[str]:
    """Compiled files that a host of root made, for an ordinary user."""
    return [name for name in names if not os.access(f"{directory}/{name}", os.R_OK)]


def runs_32_bit() -> bool:
    config = Path("/proc/config.gz")
    if not config.exists():
        return True
    text = subprocess.run(["zcat", str(config)], capture_output=True, text=True).stdout
    return "CONFIG_IA32_EMULATION=y" in text


def words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def status_of(pid: int, field: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.partition(":")[2].strip()
    raise KeyError(field)


def numbers_inside(pid: int) -> list[int]:
    return [int(word) for word in status_of(pid, "NSpid").split()]


def by_number_inside(pids: Iterable[int]) -> dict[int, int]:
    """Processes by their numbers in their namespace, without those that end meanwhile."""
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[numbers_inside(pid)[-1]] = pid
    return found


def parent_of(pid: int) -> int:
    return int(status_of(pid, "PPid"))


def below(pid: int) -> list[int]:
    """The descendants of a process, by the kernel's list of children."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *below(child)]
    return found


def running(mark: str) -> list[int]:
    """The processes outside and inside whose command line has this word, by outside pid."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in words(int(entry)).split() and alive(int(entry)):
                found.append(int(entry))
    return found


def ended(mark: str) -> None:
    """Waits until no process has this word in its command line.

    A daemon that forks all the time can be missed by one look, not by many.
    """
    eventually(
        lambda: not any(running(mark) for _ in range(LOOKS)),
        f"the end of {mark}: {running(mark)}",
        END_S,
    )


def lives(lab: Lab, session: str = "lab") -> bool:
    """The session runs, by the host's word and by its own."""
    return lab.get(session)["exit_code"] is None and lab.output("echo here", session) == "here\n"


def used(pid: int) -> dict[int, int]:
    """The processor time of each thread of a process."""
    found = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "schedstat").read_text().split()
            found[int(task.name)] = int(fields[0])
    return found


def halted_and_resumed(lab: Lab, name: str, meanwhile: Callable[[], None] | None = None) -> None:
    """Halt says complete; no thread inside then uses the processor; resume lets all go on.

    `meanwhile` happens after the answer to the halt.
    """
    told = json.loads(lab.quick("halt", name, "--json"))
    try:
        assert told["complete"], told
        if meanwhile is not None:
            meanwhile()
        inside = [pid for pid in lab.members(name) if pid != lab.init_of(name)]
        before = {pid: used(pid) for pid in inside}
        lab.ls()  # takes long enough for a running thread to be seen
        moved = {words(pid) for pid in inside if used(pid) != before[pid]}
        assert not moved, moved
    finally:
        lab.quick("resume", name)
    eventually(lambda: lives(lab, name), "the session to go on")


@contextlib.contextmanager
def session(lab: Lab, *more: str) -> Iterator[str]:
    """Another contained session, for attacks that would spoil the common one."""
    name = f"s{secrets.token_hex(3)}"
    lab.new(name, "--contained", *more, *lab.workspace, "--", "bash")
    lab.wait(name, "idle")
    try:
        yield name
    finally:
        if lab.attempt("end", name).rc:
            lab.ok("up", "--detach")
            lab.attempt("end", name)


@contextlib.contextmanager
def containment_lab() -> Iterator[Lab]:
    """Below the home of this account: /tmp is empty inside for another reason."""
    base = Path(tempfile.mkdtemp(prefix="hf-", dir=Path.home()))
    try:
        made = Lab(base)
        try:
            made.ok("up", "--detach", env={"OF_THE_HOST": SECRET})
            made.new("lab", "--contained", *made.workspace, "--", "bash")
            made.wait("lab", "idle")
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with containment_lab() as made:
        yield made
