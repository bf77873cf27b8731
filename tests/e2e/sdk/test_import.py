"""`import holdfast` on a client: without the host's libraries and without Linux."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ELSEWHERE = """
import importlib.abc, os, select, signal, socket, sys

class Denied(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {denied}:
            raise ImportError(f"{{name}} is not there on a client")

sys.meta_path.insert(0, Denied())
for module, names in {absent}.items():
    for name in names:
        if hasattr(sys.modules[module], name):
            delattr(sys.modules[module], name)
import holdfast, holdfast.sync
assert callable(holdfast.connect) and callable(holdfast.sync.connect)
assert issubclass(holdfast.NotFound, holdfast.HoldfastError)
"""
HOST_LIBRARIES = {"apsw", "pyghostty", "shfmt_py", "cedarpy", "opentelemetry", "grpc", "segno"}
ONLY_LINUX = {
    "os": ["pidfd_open", "eventfd", "memfd_create", "O_PATH", "sched_getaffinity", "setns"],
    "select": ["epoll", "EPOLLIN"],
    "signal": ["pidfd_send_signal", "sigtimedwait", "sigwaitinfo"],
    "socket": ["AF_NETLINK", "AF_VSOCK", "SO_PEERCRED", "SCM_CREDENTIALS"],
}


def test_m_the_api_loads_without_a_host_and_without_linux() -> None:
    text = ELSEWHERE.format(denied=HOST_LIBRARIES, absent=ONLY_LINUX)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Each costs milliseconds and is loaded by the call that needs it.
LATE = (
    *("argparse", "cryptography", "google", "json", "tomllib", "urllib", "websockets"),
    *("holdfast.client.credential", "holdfast.client.pairing", "holdfast.client.questions"),
    *("holdfast.core.originators", "holdfast.core.people", "holdfast.core.policy"),
    *("holdfast.core.sealed", "holdfast.core.shellcode", "holdfast.faces", "holdfast.host"),
)


def test_m_the_import_loads_no_module_that_a_single_call_needs() -> None:
    text = "import sys, holdfast, holdfast.sync; holdfast.connect; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "holdfast.sdk.session" in loaded, done.stderr
    early = [one for one in loaded if any(f"{one}.".startswith(f"{late}.") for late in LATE)]
    assert not early, early


def test_the_command_line_does_not_load_the_api() -> None:
    text = "import sys, holdfast.faces.cli.main; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_the_synchronous_api_is_rendered_from_the_asynchronous_one() -> None:
    script = Path(__file__).parents[3] / "scripts/render_sync.py"
    done = subprocess.run([sys.executable, script, "--check"])
    assert done.returncode == 0, "run scripts/render_sync.py"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import holdfast

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        holdfast.nothing  # type: ignore[attr-defined]  # noqa: B018
