"""CRIU's remote procedure calls (`criu swrk FD`): the messages that a checkpoint needs.

The worker reads one request from a SOCK_SEQPACKET socket. It sends a notification at each step,
which must be answered, and then one response.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.wire import protobuf_fields as pb

DUMP, RESTORE, NOTIFY = 1, 2, 6
IGNORE_CGROUPS = 0  # criu_cg_mode.IGNORE
SKIP_NETWORK_LOCK = 3
OPTIONS: Final = {
    "images_dir_fd": 1,
    "pid": 2,
    "leave_running": 3,
    "tcp_established": 5,
    "file_locks": 8,
    "log_level": 9,
    "log_file": 10,
    "notify_scripts": 12,
    "force_irmap": 21,
    "rst_sibling": 26,
    "manage_cgroups_mode": 34,
    "ghost_limit": 35,
    "irmap_scan_paths": 36,
    "timeout": 45,
    "orphan_pts_master": 50,
    "tcp_close": 52,
    "network_lock": 64,
    "unprivileged": 67,
    "images_dir": 68,
}

Options = dict[str, bool | int | str | tuple[str, ...]]


class Message(NamedTuple):
    """A notification (with `script`) or the response."""

    kind: int
    success: bool
    script: str
    pid: int  # of a notification or of a restore
    errno: int
    text: str


def request(kind: int, options: Options) -> bytes:
    encoded = pb.encode(
        pb.field(OPTIONS[name], one)
        for name, value in options.items()
        for one in (value if isinstance(value, tuple) else (value,))
    )
    return pb.encode((pb.field(1, kind), pb.field(2, encoded)))


def answer(success: bool) -> bytes:
    """Answer a notification; a dump that is told of a failure leaves the processes running."""
    return pb.encode((pb.field(1, NOTIFY), pb.field(3, success)))


def read(data: bytes) -> Message:
    fields = pb.decode(data)
    notify, restored = pb.decode(pb.bytes_of(fields, 5)), pb.decode(pb.bytes_of(fields, 4))
    return Message(
        pb.number_of(fields, 1),
        bool(pb.number_of(fields, 2)),
        pb.bytes_of(notify, 1).decode(),
        pb.number_of(restored, 1) or pb.number_of(notify, 2),
        pb.number_of(fields, 7),
        pb.bytes_of(fields, 9).decode(errors="replace"),
    )
