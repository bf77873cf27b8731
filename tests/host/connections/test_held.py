"""The TCP sockets of processes are found, and the kernel's tables are read only for these."""

from __future__ import annotations

import os
import socket
from unittest import mock

from holdfast.core.originators.lineage import UNKNOWN
from holdfast.host.checkpoints import look
from holdfast.host.connections import held
from holdfast.host.processes import sockets


def test_r4_only_tcp_sockets_are_looked_up() -> None:
    with (
        socket.socket(socket.AF_UNIX),
        socket.socket(type=socket.SOCK_DGRAM),
        socket.socket() as tcp,
        socket.socket(socket.AF_INET6) as tcp6,
    ):
        found = held.sockets_of([os.getpid()])
        assert {os.fstat(one.fileno()).st_ino for one in (tcp, tcp6)} <= found.keys()
        with mock.patch.object(os, "getxattr", side_effect=OSError):  # no name of the protocol
            assert len(held.sockets_of([os.getpid()])) >= len(found) + 2


def test_r4_without_tcp_sockets_no_table_is_read() -> None:
    with (
        mock.patch.object(held, "sockets_of", return_value={}),
        mock.patch.object(look, "sockets_of", return_value={}),
        mock.patch.object(sockets, "table", side_effect=AssertionError),
    ):
        assert held.of_session(os.getpid(), [os.getpid()], False, lambda pid: UNKNOWN, "hf:x") == ()
        assert look.connections(os.getpid(), (), False) == ()
