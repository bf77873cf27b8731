"""Limits: parsing, narrowing, ways, and the files of a control group."""

from __future__ import annotations

import pytest

from holdfast.core.session import limits
from holdfast.core.session.limits import Limits, Whole
from holdfast.model.errors import Usage

GIB = 1 << 30
WHOLE = Whole(8 * GIB, 100 * GIB)


def test_values_are_sizes_shares_counts_and_weights() -> None:
    texts = limits.parsed("memory=512M, processes=2000,cpu=20,disk=10%")
    assert limits.resolved(texts, WHOLE) == Limits(GIB // 2, 2000, 20, 10 * GIB)
    assert limits.resolved(limits.parsed("memory=none"), WHOLE) == Limits()
    assert limits.amount("memory", "2gib", WHOLE) == 2 * GIB


@pytest.mark.parametrize(
    "text",
    [
        *("", "memory", "memory=", "memory=0", "memory=-1", "memory=1M", "memory=101%"),
        *("memory=4X", "processes=1", "processes=50%", "processes=9999999999", "cpu=0"),
        *("cpu=10001", "swap=1G", "memory=1G,memory=2G", "disk=1K", "memory=٣G", "processes=٣٣"),
    ],
)
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Usage):
        limits.parsed(text)


def test_a5_a_narrowed_limit_is_never_wider() -> None:
    base = Limits(4 * GIB, 1000, 50, None)
    asked = Limits(None, 2000, 10, GIB)
    assert limits.narrowed(base, asked) == Limits(4 * GIB, 1000, 10, GIB)
    assert limits.replaced(base, asked, {"memory", "disk"}) == Limits(None, 1000, 50, GIB)


def test_the_way_says_what_the_promise_is_worth() -> None:
    all_of = Limits(GIB, 100, 50, GIB)
    group = {"memory", "processes", "cpu"}
    assert limits.ways(all_of, group, (), True, True) == {
        **dict.fromkeys(group, "cgroup"),
        "disk": "watch",
    }
    assert limits.ways(all_of, (), (), True, True) == {
        "memory": "none",
        "processes": "rlimit",
        "cpu": "nice",
        "disk": "watch",
    }
    root = limits.ways(all_of, (), {"memory"}, False, True)
    assert root["memory"] == "each process" and root["processes"] == "watch"
    assert limits.ways(Limits(), group, (), True, True) == {}


def test_the_files_of_a_group_end_with_the_file_that_binds() -> None:
    files = limits.group_files(Limits(4 * GIB, 100, 50, GIB), 8 * GIB, 2 * GIB)
    assert list(files["memory"])[-1] == "memory.max"
    assert files["memory"] == {
        "memory.high": str(4 * GIB * 9 // 10),
        "memory.swap.max": str(GIB),
        "memory.max": str(4 * GIB),
    }
    assert files["processes"] == {"pids.max": "100"} and files["cpu"] == {"cpu.weight": "50"}
    assert "disk" not in files


def test_a_weight_is_a_nice_value_that_never_raises_the_priority() -> None:
    assert [limits.nice(weight) for weight in (10_000, 100, 80, 50, 1)] == [0, 0, 1, 3, 19]


def test_kills_for_memory_are_read_from_both_files() -> None:
    assert limits.oom_kills("low 0\nhigh 7\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n") == 2
    assert limits.oom_kills("nr_free_pages 5\noom_kill 3\n") == 3
    assert limits.oom_kills("") == 0


def test_the_line_names_value_and_way() -> None:
    said = limits.says(
        {"memory": {"limit": GIB, "by": "cgroup"}, "disk": {"limit": GIB, "by": "watch"}}
    )
    assert said == "limits: 1 GiB of memory (by the kernel), 1 GiB of disk (halted above it)"
