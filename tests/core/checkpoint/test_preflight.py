"""What can be saved and what will be lost is decided from facts, in words (R2)."""

from __future__ import annotations

import pytest

from holdfast.core.checkpoint.preflight import (
    COPIED_MAX,
    NOTHING,
    Facts,
    HeldFile,
    Process,
    explain,
    judge,
)

SHELL = Process(10, "bash", rss=4_000_000)
GOOD = Facts("contained", processes=(SHELL,), free=1 << 30)


def test_r2_an_ordinary_session_can_be_saved() -> None:
    found = judge(GOOD)
    assert found.possible and not found.losses
    assert found.bytes > SHELL.rss and 0 < found.seconds < 1


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            GOOD._replace(layout="plain", root=False),
            "of an ordinary user: only root may",
        ),
        (GOOD._replace(layout="plain", topped=False), "without hf-root"),
        (GOOD._replace(layout="plain", planned=False), "end it and start it again"),
        (GOOD._replace(planned=False), "made by an earlier release"),
        (GOOD._replace(free=1), "about 5 MB are needed"),
        (GOOD._replace(tool="CRIU is not installed: install it"), "CRIU is not installed"),
        (GOOD._replace(shared_memory=2), "2 segments of System V shared memory"),
        (GOOD._replace(processes=(SHELL._replace(tracer=7),)), "bash (10) is traced by process 7"),
        (GOOD._replace(processes=(SHELL._replace(filters=1),)), "seccomp filter of its own"),
        (GOOD._replace(processes=(SHELL._replace(nested=True, filters=1),)), "namespaces of its"),
        (GOOD._replace(processes=(SHELL._replace(holds=("/dev/nvidia0",)),)), "uses a GPU"),
        (
            GOOD._replace(layout="plain", processes=(SHELL, SHELL._replace(pid=11)), host=11),
            "which must go on: this host (11);",
        ),
        (
            GOOD._replace(
                layout="plain",
                processes=tuple(
                    Process(n, ("hf-nursery", "hf-keeper")[n > 1]) for n in range(1, 8)
                ),
            ),
            "hf-nursery (1), hf-keeper (2), hf-keeper (3), hf-keeper (4), hf-keeper (5) and 2 more",
        ),
        (
            GOOD._replace(processes=(SHELL._replace(unlinked=("/dev/shm/one",)),), root=False),
            "bash (10) has mapped a deleted file (/dev/shm/one), which only root may save",
        ),
        (
            GOOD._replace(processes=(SHELL._replace(holds=("anon_inode:[io_uring]",)),)),
            "bash (10) uses io_uring",
        ),
        (
            GOOD._replace(held=(HeldFile("/w/big", 1, "bash (10)", COPIED_MAX + 1),)),
            "bash (10) has a deleted file of 268 MB open (/w/big); 268 MB can be copied",
        ),
    ],
)
def test_r2_an_obstacle_is_named_before_anything_stops(facts: Facts, says: str) -> None:
    found = judge(facts)
    assert not found.possible
    assert len(found.blockers) == 1 and says in found.blockers[0]


def test_r2_root_saves_mapped_files_without_a_name() -> None:
    found = GOOD._replace(processes=(SHELL._replace(unlinked=("/dev/shm/one",)),))
    assert judge(found).possible and not judge(found._replace(root=False)).possible


def test_r2_a_plain_session_of_root_can_be_saved() -> None:
    assert judge(GOOD._replace(layout="plain")).possible


def test_r2_the_size_counts_what_is_copied() -> None:
    shared, deleted = HeldFile("shared memory", 70), HeldFile("/w/gone", 20, "sh (1)", 20)
    written = HeldFile("/w/log", 2 * COPIED_MAX, "sh (1)", written=True)
    facts = GOOD._replace(processes=(), held=(shared, deleted, written))
    assert judge(facts).bytes == int((90 + COPIED_MAX) * 1.2)
    huge = facts._replace(held=(deleted._replace(deleted=COPIED_MAX + 1), written))
    assert not judge(huge).possible
    forked = judge(huge._replace(copied_max=NOTHING))
    assert forked.possible and forked.bytes == 24


def test_r2_connections_that_will_be_closed_are_named() -> None:
    facts = GOOD._replace(connections=tuple(f"127.0.0.1:{n} -> 127.0.0.1:80" for n in range(7)))
    [loss] = judge(facts).losses
    assert "127.0.0.1:4 -> 127.0.0.1:80 and 2 more" in loss
    assert not judge(facts._replace(connections=())).losses


def test_r2_unread_input_is_named() -> None:
    assert "5 bytes of typed input" in judge(GOOD._replace(unread=5)).losses[0]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "Error (criu/files-reg.c:2180): File work/read has bad size 12 (expect 3); Error: x",
            "work/read has changed since the checkpoint",
        ),
        (
            "Error (criu/files-reg.c:2143): Can't open file home/u/a on restore: No such file",
            "home/u/a is missing",
        ),
        (
            "Error (criu/cr-restore.c:1237): Can't fork for 2236: File exists; Error: x",
            "another process on this machine has the number 2236",
        ),
        ("Error (criu/sk-unix.c:890): unix: Can't dump half of stream unix connection.", "outside"),
        (
            "Error (compel/src/lib/infect.c:281): SEIZE 12: can't read signfo: "
            "Device or resource busy; Error: x",
            "process 12 has content in long vector registers",
        ),
        ("python3 (12) has a seccomp filter of its own", "has a seccomp filter of its own"),
        ("something that no one has seen", "something that no one has seen"),
    ],
)
def test_r2_errors_of_criu_are_put_into_words(error: str, says: str) -> None:
    assert says in explain(error)


def test_r2_an_unknown_error_of_criu_does_not_begin_with_noise() -> None:
    noise = (
        "(00.000021) Error (criu/util.c:1509): rlimit: Can't setup RLIMIT_NOFILE for self: "
        "Operation not permitted"
    )
    assert explain(f"{noise}; Error (criu/x.c:1): x; Error: y") == "Error (criu/x.c:1): x; Error: y"
    assert explain(noise) == noise
