"""What all tests rely on: the end of daemons, signals, a home, equal examples, the smoke marker."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.commands.whole_run import hold_together
from tests.support.examples import EXPLORE, examples

if "PYTEST_XDIST_WORKER" not in os.environ:
    hold_together()

# A run that was started in the background or under nohup ignores these signals. Programs under test
# would inherit that, and Ctrl-C would reach none of them.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(_number, signal.SIG_DFL)

# Shells under test read no start file of the real account, which may take long or wait for a lock.
# Below the real home: in /tmp a contained session would not see it for another reason.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _home = tempfile.TemporaryDirectory(prefix="hf-", dir=Path.home(), ignore_cleanup_errors=True)
    os.environ["HOME"] = _home.name

# No deadline: a slow example says something about the machine, not about the code. The examples are
# the same in every run, so that a failure points to a change. HYPOTHESIS_PROFILE=explore tries
# twenty times as many, other ones in each run.
settings.register_profile(
    "explore" if EXPLORE else "same",
    deadline=None,
    derandomize=not EXPLORE,
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("explore" if EXPLORE else "same")


# The modules that take longest, longest first, as measured: the last to begin must be short.
LONGEST = {
    Path(__file__).parent / line: place
    for place, line in enumerate((Path(__file__).parent / "longest.txt").read_text().splitlines())
}
REPETITION = "as_an_ordinary_user"  # in the names of tests that run a module again as that user


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The golden vectors belong to the smoke tests: other libraries must give the same bytes.

    With several workers the order is that of their work: the longest comes first.
    """
    for item in items:
        if item.path.stem.endswith("_vectors"):
            item.add_marker("smoke")
    if "PYTEST_XDIST_WORKER" in os.environ:
        sizes = Counter(item.path for item in items)

        def place(item: pytest.Item) -> tuple[object, ...]:
            known = LONGEST.get(item.path, len(LONGEST))
            return REPETITION not in item.name, known, -sizes[item.path], item.path

        items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A module stays on one worker, because its tests share an installation. A repetition is apart.

    A repetition starts programs of its own and takes as long as the rest of its module.
    """
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    module_of = scheduler._split_scope
    scheduler._split_scope = lambda node: node if REPETITION in node else module_of(node)
    return scheduler


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for a socket; that of a worker's tmp_path may not."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as made:
        yield Path(made)
