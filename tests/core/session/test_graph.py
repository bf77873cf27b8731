"""Queries on a graph: the subtree of a process, and the limited size of an answer."""

from __future__ import annotations

import json

from holdfast.core.originators.lineage import Cause, Lineage
from holdfast.core.session.graph import File, Graph, Process, as_json, fitted, subtree


def process(pid: int, ppid: int, start: int, argv: tuple[str, ...] = ("x",)) -> Process:
    return Process(
        pid, ppid, start, 0.0, argv, "x", "sleeping", "/", "/x", 0, pid, pid, False, 1, 0.0, 0
    )


def pids(processes: list[Process], tops: dict[int, int], started_by: dict[int, int]) -> list[int]:
    return [one.pid for one in subtree(processes, tops, started_by.get)]


def test_p5_descendants_count_even_with_another_parent_by_now() -> None:
    processes = [
        process(10, 1, 5),
        process(11, 10, 6),
        process(12, 1, 7),
        process(13, 12, 8),
        process(14, 1, 9),
    ]
    assert pids(processes, {10: 5}, {11: 10, 12: 11, 13: 12, 14: 2}) == [10, 11, 12, 13]


def test_p5_a_process_with_a_reused_pid_and_its_children_are_no_descendants() -> None:
    """Process 10 (started at 5) ended and left 12 behind; the pid 10 was reused, with a child."""
    processes = [process(10, 1, 50), process(11, 10, 60), process(12, 1, 7)]
    assert pids(processes, {10: 5}, {10: 2, 11: 10, 12: 10}) == [12]


def test_p5_an_older_process_is_no_descendant_with_any_parent_pid() -> None:
    """12 was started by an earlier process 10, long gone."""
    processes = [process(10, 1, 50), process(11, 10, 60), process(12, 1, 7)]
    assert pids(processes, {10: 50}, {11: 10, 12: 10}) == [10, 11]


def test_p5_the_descendants_of_an_ended_process() -> None:
    assert pids(
        [process(12, 1, 7), process(13, 12, 8), process(14, 1, 3)], {10: 5}, {12: 10, 14: 10}
    ) == [12, 13]


def test_s2_processes_beyond_the_limit_are_left_out_and_counted() -> None:
    lineage = Lineage(10, Cause("ann", None), shell=True)
    odd = "\x1b[31m\n\udcff\u202e" * 50
    processes = tuple(process(n, 1, n, (odd,)) for n in range(100))
    files = tuple(File(n, 0, "/" + odd, "file", "r", 0) for n in range(100))
    whole = as_json(Graph(1.0, "tree", processes, files, cut={"processes": 3}), lineage, "hf:x@1")
    size = len(json.dumps(whole).encode())
    assert fitted(whole, 10 * size) == whole
    for most in (size // 20, size // 5):
        cut = fitted(whole, most)
        assert (
            len(
                json.dumps(cut, separators=(",", ":"), ensure_ascii=False).encode(
                    "utf-8", "surrogatepass"
                )
            )
            <= most
        )
        assert cut["cut"]["processes"] == 3 + 100 - len(cut["processes"]) and cut["cut"][
            "files"
        ] == 100 - len(cut["files"])
        assert cut["processes"] and cut["processes"] == whole["processes"][: len(cut["processes"])]
