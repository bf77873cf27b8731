"""Checks which events can be gated and observed (execs, files, processes), and which bypasses work.

Questions about an ordinary user are tried as an ordinary user. As root, the check first drops all
privileges: root's answer does not apply to the account that sessions run in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pty
import signal
import socket
import struct
import tempfile
import termios
import time
from pathlib import Path

from holdfast.core.shellcode.facts import Unparseable
from holdfast.host.doctor.check import Check, Outcome, Surroundings, failed, readable, sysctl
from holdfast.host.doctor.libc import (
    PR_SET_NO_NEW_PRIVS,
    PTRACE_SEIZE,
    become_ordinary,
    call,
    forked,
    in_child,
    syscall,
    wait_forever,
)
from holdfast.host.policy.shfmt import Parser

EVENT_WAIT_S = 1.0

_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_CLASS_CONTENT, _FAN_REPORT_FID = 0x1, 0x2, 0x4, 0x200
_FAN_REPORT_ALL = 0x200 | 0x400 | 0x800 | 0x1000
_FAN_MARK_ADD, _FAN_MARK_FILESYSTEM = 0x1, 0x100
_FAN_OPEN_EXEC_PERM, _FAN_CREATE = 0x0004_0000, 0x100
_AT_FDCWD = -100
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 1 << 3
_BPF_RET_ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF_0000)  # "return SECCOMP_RET_ALLOW"
_BPF_PROG_LOAD, _BPF_PROG_TYPE_RAW_TRACEPOINT = 5, 17
# r0 = 0; exit
_BPF_RETURN_0 = struct.pack("BBhi", 0xB7, 0, 0, 0) + struct.pack("BBhi", 0x95, 0, 0, 0)
_NETLINK_CONNECTOR, _CN_IDX_PROC, _CN_VAL_PROC, _PROC_CN_MCAST_LISTEN, _NLMSG_DONE = 11, 1, 1, 1, 3


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


# --- exec -----------------------------------------------------------------------------------------


def _exec_gate_seccomp(surroundings: Surroundings) -> Outcome:
    if surroundings.uid != 0:
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = _FilterProgram(1, _BPF_RET_ALLOW)
    try:
        listener = syscall(
            "seccomp", _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER, program
        )
    except OSError as error:
        return failed(
            f"seccomp notification: {error.strerror}: sessions are gated at input depth"
            + (", because doctor itself runs in a gated one" if error.errno == errno.EBUSY else ""),
            "start the host outside of a gated session"
            if error.errno == errno.EBUSY
            else "upgrade to Linux 5.5 or later",
        )
    os.close(listener)
    if surroundings.uid == 0:
        return Outcome(
            True,
            "a filter with a listener was installed: "
            "every session is gated at exec depth, unless it is made with `--gate input`",
        )
    return Outcome(
        True,
        "a filter with a listener was installed: contained sessions are gated at exec depth; plain "
        "ones at input depth, because the filter needs no_new_privs there, which disables sudo "
        "(`new --gate exec` turns it on)",
    )


def _exec_gate_fanotify(surroundings: Surroundings) -> Outcome:
    try:
        watch = call(
            "fanotify_init", _FAN_CLASS_CONTENT | _FAN_CLOEXEC | _FAN_NONBLOCK, os.O_RDONLY
        )
        with tempfile.NamedTemporaryFile(prefix=surroundings.tag) as target:
            name = os.fsencode(target.name)
            call("fanotify_mark", watch, _FAN_MARK_ADD, _FAN_OPEN_EXEC_PERM, _AT_FDCWD, name)
        os.close(watch)
    except OSError as error:
        fix = (
            "run the host as root; as an ordinary user the seccomp gate serves"
            if surroundings.uid
            else "use a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS and keep CAP_SYS_ADMIN"
        )
        return failed(f"{error.filename}: {error.strerror}", fix)
    return Outcome(True, "a file was marked for permission to execute it")


# --- events ---------------------------------------------------------------------------------------


def _file_events(surroundings: Surroundings) -> Outcome:
    """First with a mark on a single directory, which the kernel also allows ordinary users."""
    seen = by = 0
    try:
        watch = call("fanotify_init", _FAN_REPORT_FID | _FAN_CLOEXEC | _FAN_NONBLOCK, os.O_RDONLY)
        with tempfile.TemporaryDirectory(prefix=surroundings.tag) as directory:
            path = os.fsencode(directory)
            call("fanotify_mark", watch, _FAN_MARK_ADD, _FAN_CREATE, _AT_FDCWD, path)
            child = forked(Path(directory, "created").touch)
            os.waitpid(child, 0)
            if readable(watch, EVENT_WAIT_S):
                seen, by = struct.unpack_from("=QxxxxI", os.read(watch, 4096), 8)
        os.close(watch)
    except OSError as error:
        return failed(
            f"{error.filename}: {error.strerror}", "use Linux 5.13 or later with CONFIG_FANOTIFY"
        )
    if not seen:
        return failed(
            "a file was created in a watched directory and nothing was reported",
            "use a local filesystem for temporary files",
        )
    if by != child:
        return failed(
            "the kernel reports a created file, but not by which process: the author of a file is "
            "known only if no other operator can have written it",
            "run the host as root",
        )
    try:
        watch = call("fanotify_init", _FAN_REPORT_ALL | _FAN_CLOEXEC | _FAN_NONBLOCK, os.O_RDONLY)
        with tempfile.TemporaryDirectory(prefix=surroundings.tag) as directory:
            flags, path = _FAN_MARK_ADD | _FAN_MARK_FILESYSTEM, os.fsencode(directory)
            call("fanotify_mark", watch, flags, _FAN_CREATE, _AT_FDCWD, path)
        os.close(watch)
    except OSError as error:
        return failed(
            f"a whole file system cannot be watched ({error.filename}: {error.strerror}): the "
            "author of a file is known only if no other operator can have written it",
            "use Linux 5.17 or later, and keep CAP_SYS_ADMIN",
        )
    return Outcome(True, "the kernel reports who writes a file, on whole file systems")


def _process_events(_: Surroundings) -> Outcome:
    fix = "run the host as root, or use Linux 6.6 or later, which lets ordinary users listen"
    try:
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
    except OSError as error:
        return failed(f"proc connector: {error.strerror}", "use a kernel with CONFIG_PROC_EVENTS")
    with events:
        try:
            events.bind((os.getpid(), _CN_IDX_PROC))
            body = struct.pack(
                "=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0, _PROC_CN_MCAST_LISTEN
            )
            events.send(
                struct.pack("=IHHII", 16 + len(body), _NLMSG_DONE, 0, 0, os.getpid()) + body
            )
        except OSError as error:
            return failed(f"proc connector: {error.strerror}", fix)
        child = forked(lambda: None)
        os.waitpid(child, 0)
        deadline = time.monotonic() + EVENT_WAIT_S
        while (left := deadline - time.monotonic()) > 0 and readable(events.fileno(), left):
            try:
                message = events.recv(4096)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                return Outcome(True, "forks are reported, faster than this check reads")
            if struct.pack("=I", child) in message[36:]:  # behind two headers
                return Outcome(True, "a fork of this process was reported")
    return failed("proc connector: listening is allowed, but a fork was not reported", fix)


def _bpf(surroundings: Surroundings) -> Outcome:
    code, licence = ctypes.create_string_buffer(_BPF_RETURN_0), ctypes.create_string_buffer(b"GPL")
    program = (_BPF_PROG_TYPE_RAW_TRACEPOINT, 2, ctypes.addressof(code), ctypes.addressof(licence))
    attributes = struct.pack("IIQQ", *program).ljust(struct.calcsize("IIQQIIQII16sII"), b"\0")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    try:
        os.close(syscall("bpf", _BPF_PROG_LOAD, buffer, len(attributes)))
    except OSError as error:
        return failed(
            f"loading a program: {error.strerror}",
            "run the host as root; it is optional, the proc connector serves instead"
            if surroundings.uid
            else "use a kernel with CONFIG_BPF_SYSCALL and keep CAP_BPF and CAP_PERFMON",
        )
    return Outcome(True, "a tracing program was loaded")


# --- ways around ----------------------------------------------------------------------------------


def _pair(look: str) -> str:
    """Whether a process may "trace" an unrelated process of the same account, or read "syscall"."""
    become_ordinary()
    target = forked(wait_forever)
    try:

        def other() -> str:
            if look == "trace":
                call("ptrace", PTRACE_SEIZE, target, 0, 0)
            else:
                deadline = time.monotonic() + EVENT_WAIT_S
                while not (said := Path(f"/proc/{target}/syscall").read_text()) or said.startswith(
                    "running"
                ):
                    if time.monotonic() > deadline:
                        return "the target did not come to rest"
            return ""

        return in_child(other)
    finally:
        os.kill(target, signal.SIGKILL)
        os.waitpid(target, 0)


def _yama() -> str:
    scope = sysctl("kernel.yama.ptrace_scope")
    return "this kernel has no Yama" if scope is None else f"kernel.yama.ptrace_scope is {scope}"


def _tracing_closed(_: Surroundings) -> Outcome:
    try:
        _pair("trace")
    except PermissionError:
        return Outcome(
            True,
            f"a process may not trace another one of its account ({_yama()}); code in a plain "
            "session can still read the account's files, keys included",
        )
    fix = "run agents in contained sessions"
    if sysctl("kernel.yama.ptrace_scope") is not None:
        fix += "; sysctl -w kernel.yama.ptrace_scope=1"
    return failed(
        f"any process may trace another one of its account ({_yama()}): code in a plain "
        "session can read the host's memory and keys",
        fix,
    )


def _seeing_waits(_: Surroundings) -> Outcome:
    try:
        wrong = _pair("syscall")
    except OSError as error:
        return failed(
            f"the host may not read what a process of its account waits for: {error.strerror} "
            f"({_yama()}); prompts and secrets are still detected, other waits partly guessed",
            "sysctl -w kernel.yama.ptrace_scope=0 (it opens tracing too), or run the host as root",
        )
    return Outcome(
        None if wrong else True, wrong or "the system call of another process can be read"
    )


def _tiocsti(_: Surroundings) -> Outcome:
    setting = sysctl("dev.tty.legacy_tiocsti")
    about = "dev.tty.legacy_tiocsti is " + (
        setting if setting is not None else "absent (before Linux 6.2)"
    )

    def push() -> str:
        master, slave = pty.openpty()
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        become_ordinary()
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        return str(master)  # keep the master open until here: closing it sends SIGHUP

    try:
        in_child(push)
    except OSError as error:
        if error.errno in (errno.EIO, errno.EPERM):
            return Outcome(True, f"a program cannot put input into its terminal ({about})")
        raise
    return failed(
        "a program of a plain session at input depth can put input into its terminal past the "
        f"host, and the record then names the operator that typed last ({about})",
        "sysctl -w dev.tty.legacy_tiocsti=0"
        if setting is not None
        else "upgrade to Linux 6.2 or later and set dev.tty.legacy_tiocsti=0",
    )


# --- reading commands -----------------------------------------------------------------------------


def _shell_grammar(_: Surroundings) -> Outcome:
    parser = Parser()
    try:
        parser("a && b | c >d", "bash")
    except Unparseable as error:
        return failed(
            f"{error}: no command can be analysed before it runs, so the built-in policy "
            "asks about every command of an agent",
            "install the package shfmt-py beside holdfast, or shfmt 3.8 or later",
        )
    return Outcome(True, f"a command was read by {parser.binary}")


CHECKS = (
    Check(
        "shell-grammar",
        "Reading commands before they run (shfmt)",
        "the gate's policy",
        _shell_grammar,
    ),
    Check(
        "exec-gate-seccomp",
        "Exec gate by seccomp notification",
        "the gate at each exec",
        _exec_gate_seccomp,
    ),
    Check(
        "exec-gate-fanotify",
        "Exec gate by fanotify",
        "the gate at each exec, in checkpointable sessions",
        _exec_gate_fanotify,
    ),
    Check("file-events", "File events by fanotify", "originators of files", _file_events),
    Check(
        "process-events",
        "Process events by proc connector",
        "lineage of short-lived processes",
        _process_events,
    ),
    Check("bpf", "eBPF", "process events filtered by session (optional)", _bpf),
    Check("waits-visible", "Seeing what a program waits for", "wait for input", _seeing_waits),
    Check(
        "tracing-closed",
        "Processes of one account kept apart",
        "keys safe from code in plain sessions",
        _tracing_closed,
    ),
    Check("tiocsti-closed", "No typing past the layer (TIOCSTI)", "one door for writes", _tiocsti),
)
