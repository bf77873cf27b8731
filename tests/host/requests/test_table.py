"""Every operation has a handler of the contract's types; and the cuts of long answers."""

from __future__ import annotations

import inspect
import typing

import pytest

from holdfast.core.contract.table import OPERATIONS
from holdfast.host.requests import observe, run, sessions, summary
from holdfast.host.requests.host import Context, Host
from holdfast.host.requests.table import HANDLERS
from holdfast.model.errors import Usage
from holdfast.model.limits import FRAME_BYTES
from holdfast.wire import frames

LATE = {"Host": Host, "Context": Context}  # imported for type checking only, in some modules


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_handler_of_its_request_and_its_reply(name: str) -> None:
    handler, row = HANDLERS[name], OPERATIONS[name]
    hints = typing.get_type_hints(handler, vars(inspect.getmodule(handler)) | LATE)
    assert hints["q"] is row.request
    assert hints["return"] is row.reply or name == "attach"  # attach sends the reply itself


def test_there_is_no_handler_without_an_operation() -> None:
    assert HANDLERS.keys() == OPERATIONS.keys()


def test_arguments_in_a_listing_are_shortened_visibly() -> None:
    assert summary.shortened(["sh", "-c", "true"]) == ("sh", "-c", "true")
    cut = summary.shortened(["sh", "x" * 100_000, *["y"] * 1000])
    assert (
        cut[0] == "sh" and cut[-1] == "..." and sum(map(len, cut)) <= 2 * summary.ARGV_SHOWN_CHARS
    )


@pytest.mark.parametrize("line", ["0" * 1000, "é" * 1000, "\\" * 1000, '"' * 1000, ""])
def test_history_fits_into_a_frame_and_keeps_the_newest(line: str) -> None:
    lines = [f"{n:06d}{line}" for n in range(10_000)]
    kept = observe._newest(lines)
    assert kept == lines[len(lines) - len(kept) :] and len(kept) > 500
    assert len(frames.reply(1, {"history": kept})) < FRAME_BYTES - 100_000


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("plain", True),
        ("é€😀", True),
        ("\udc80\udcff", True),
        ("\ud800", False),
        ("\udfff", False),
        ("a\udc00", False),
    ],
)
def test_text_is_bytes_in_disguise_or_refused(text: str, good: bool) -> None:
    assert sessions.is_bytes(text) is good
    if good:
        assert run.to_bytes(text) == text.encode("utf-8", "surrogateescape")
    else:
        with pytest.raises(Usage):
            run.to_bytes(text)
