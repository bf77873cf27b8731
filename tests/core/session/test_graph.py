"""What is asked of a graph: what is below a process, and what of it fits into an answer."""

from __future__ import annotations

import json

from holdfast.core.graph import File, Graph, Process, fitted, subtree, told
from holdfast.core.lineage import Cause, Lineage


def process(pid: int, ppid: int, start: int, argv: tuple[str, ...] = ("x",)) -> Process:
    return Process(
        pid, ppid, start, 0.0, argv, "x", "sleeping", "/", "/x", 0, pid, pid, False, 1, 0.0, 0
    )


def pids(processes: list[Process], tops: dict[int, int], started_by: dict[int, int]) -> list[int]:
    return [one.pid for one in subtree(processes, tops, started_by.get)]


def test_p5_below_is_what_it_started_also_with_another_parent_by_now() -> None:
    processes = [
        process(10, 1, 5),
        process(11, 10, 6),
        process(12, 1, 7),
        process(13, 12, 8),
        process(14, 1, 9),
    ]
    assert pids(processes, {10: 5}, {11: 10, 12: 11, 13: 12, 14: 2}) == [10, 11, 12, 13]


def test_p5_a_process_that_got_the_pid_later_has_nothing_to_do_with_it_nor_have_its_children() -> (
    None
):
    """10 (started at 5) ended; another is 10 now, with a child. 12 is what the first one left behind."""
    processes = [process(10, 1, 50), process(11, 10, 60), process(12, 1, 7)]
    assert pids(processes, {10: 5}, {10: 2, 11: 10, 12: 10}) == [12]


def test_p5_what_is_older_was_not_started_by_it_whatever_its_parents_pid_was() -> None:
    """12 was started by an earlier process 10, long gone."""
    processes = [process(10, 1, 50), process(11, 10, 60), process(12, 1, 7)]
    assert pids(processes, {10: 50}, {11: 10, 12: 10}) == [10, 11]


def test_p5_of_one_that_is_gone_what_it_left_behind() -> None:
    assert pids(
        [process(12, 1, 7), process(13, 12, 8), process(14, 1, 3)], {10: 5}, {12: 10, 14: 10}
    ) == [12, 13]


def test_s2_what_does_not_fit_is_left_out_and_counted() -> None:
    lineage = Lineage(10, Cause("ann", None), shell=True)
    odd = "\x1b[31m\n\udcff\u202e" * 50
    processes = tuple(process(n, 1, n, (odd,)) for n in range(100))
    files = tuple(File(n, 0, "/" + odd, "file", "r", 0) for n in range(100))
    whole = told(Graph(1.0, "tree", processes, files, cut={"processes": 3}), lineage, "hf:x@1")
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
