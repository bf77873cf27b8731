"""Parses shell text with shfmt, with a new process for each text.

shfmt is the only parser that was right on all hard cases. shfmt has no mode for several texts in
sequence, so each text gets a process: without a shell in between, with an empty environment, the
text as input, and bounded time and output. Starting the process is most of the cost. The trees of
recent texts are remembered, since a command is parsed more than once (asked, then approved, then
run).

Every failure (no binary, too slow, too large, unknown JSON) is `Unparseable`: the gate then asks.
Callers that parse the same text share a tree and must not change the tree.

Rejected: a long-lived process (shfmt reads to the end of the input), and linking the parser in
(that would bring a Go runtime into the host).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import sysconfig
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from holdfast.core.shellcode.facts import TEXT_BYTES_MAX, Unparseable

PARSE_WAIT_S: Final = 4.0  # shfmt takes milliseconds; a machine under load takes longer
# Of JSON: parsing more would block the host for tens of milliseconds.
TREE_BYTES_MAX: Final = 2 * 1024 * 1024
DATA_BYTES_MAX: Final = 512 * 1024 * 1024  # memory of a shfmt process
Tree = Mapping[str, Any]  # a node of the syntax tree, in the form of shfmt's JSON
KEPT_TEXTS: Final = 64
KEPT_TEXT_BYTES: Final = 4096  # larger texts are not remembered: their trees are megabytes
_DIALECTS: Final = ("bash", "posix", "zsh", "mksh")
_CANARY: Final = 'a |& "b$(c)" >d <<E\n`e`\nE'


def find_shfmt() -> str | None:
    """The binary of the package `shfmt-py`, else that of the system."""
    for directory in (
        sysconfig.get_path("scripts"),
        os.path.dirname(sys.executable),
        "/usr/local/bin",
        "/usr/bin",
    ):
        path = f"{directory}/shfmt"
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


class Parser:
    """Called from any thread; blocks for milliseconds."""

    def __init__(self, binary: str | None = None, wait_s: float = PARSE_WAIT_S) -> None:
        self.binary = binary or find_shfmt()
        self.wait_s = wait_s
        self._kept: OrderedDict[tuple[str, str], Tree] = OrderedDict()
        self._lock = threading.Lock()
        self._fits: bool | None = None

    def __call__(self, text: str, dialect: str) -> Tree:
        with self._lock:
            kept = self._kept.get((dialect, text))
            if kept is not None:
                self._kept.move_to_end((dialect, text))
                return kept
        if self._fits is None:
            self._fits = self._try()
        if not self._fits:
            raise Unparseable(
                "parser",
                "shfmt is missing"
                if self.binary is None
                else f"{self.binary} is not a supported shfmt",
            )
        tree = self._tree(text, dialect)
        if len(text) <= KEPT_TEXT_BYTES:
            with self._lock:
                self._kept[dialect, text] = tree
                if len(self._kept) > KEPT_TEXTS:
                    self._kept.popitem(last=False)
        return tree

    def _try(self) -> bool | None:
        """Whether this shfmt writes the expected JSON; None if shfmt was too slow to tell.

        Older versions number their operators.
        """
        try:
            tree = self._tree(_CANARY, "bash")
            pipe = tree["Stmts"][0]["Cmd"]
            right = pipe["Y"]
            return bool(
                pipe["Op"] == "|&"
                and right["Redirs"][0]["Op"] == ">"
                and right["Redirs"][1]["Hdoc"]["Parts"][0]["Type"] == "CmdSubst"
            )
        except Unparseable as e:
            slow = e.reason.code == "parser" and "time" in e.reason.detail
            return None if slow and self.binary and os.access(self.binary, os.X_OK) else False
        except (KeyError, IndexError, TypeError):
            return False

    def _tree(self, text: str, dialect: str) -> Tree:
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Unparseable("control") from None
        if dialect not in _DIALECTS:
            raise Unparseable("shell", dialect)
        if len(data) > TEXT_BYTES_MAX:
            raise Unparseable("size")
        if b"\0" in data or b"\r" in data:
            raise Unparseable("control")
        code, output = self._run(data, dialect)
        if code != 0:
            raise Unparseable("parse" if code == 1 else "parser", _message(output))
        try:
            tree = json.loads(output)
        except (ValueError, RecursionError):
            raise Unparseable("parser", "shfmt did not answer in JSON") from None
        if (
            not isinstance(tree, dict)
            or tree.get("Type") != "File"
            or not isinstance(tree.get("Stmts", []), list)
        ):
            raise Unparseable("parser", "shfmt did not answer with a syntax tree")
        return tree

    def _run(self, data: bytes, dialect: str) -> tuple[int, bytes]:
        if self.binary is None:
            raise Unparseable("parser", "shfmt is missing")
        source = os.memfd_create("shfmt", os.MFD_CLOEXEC)
        try:
            os.write(source, data) if data else None
            os.lseek(source, 0, os.SEEK_SET)
            try:
                child = subprocess.Popen(
                    [self.binary, "--to-json", "-ln", dialect],
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env={},
                    close_fds=True,
                )
            except OSError as e:
                raise Unparseable("parser", f"shfmt did not start: {e.strerror}") from e
        finally:
            os.close(source)
        try:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(child.pid, resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
            output = self._read(child)
            return child.wait(timeout=1.0), output
        except subprocess.TimeoutExpired:
            raise Unparseable("parser", "shfmt took too much time") from None
        finally:
            if child.returncode is None:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()

    def _read(self, child: subprocess.Popen[bytes]) -> bytes:
        assert child.stdout is not None
        fd, deadline, pieces = child.stdout.fileno(), time.monotonic() + self.wait_s, list[bytes]()
        size = 0
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise Unparseable("parser", "shfmt took too much time")
            piece = os.read(fd, 1 << 18)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
            if size > TREE_BYTES_MAX:
                raise Unparseable("size")


def _message(output: bytes) -> str:
    """The first line of shfmt's message, without the name of the input."""
    first = (output.decode("utf-8", "replace").strip().splitlines() or [""])[0]
    return first.removeprefix("<standard input>:")[:160]
