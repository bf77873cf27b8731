"""The advice in an error, for an agent: tools instead of commands and calls of the Python API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.model.errors import HoldfastError
from holdfast.sdk.recovery import ADVICE as OF_SDK
from holdfast.sdk.recovery import for_programs

if TYPE_CHECKING:
    from holdfast.model.jsontext import Json

ADVICE: Final = {  # an error without a row has the advice of the error above it
    "error": "look at the session (screen) before you try again",
    "usage": "look at the schema of the tool, or read the resource holdfast://guide",
    "ambiguous": "give the whole id: sessions lists them",
    "not_found": "sessions lists what there is",
    "refused": "the message has the reason; sessions and screen show the present state",
    "not_allowed": "you have not this right: ask a human, and do not look for a way around",
    "turn_held": "turn with do=request asks the holder for the turn; run waits for it by itself",
    "busy": "a program runs: wait until idle, answer it with send, or end it with stop",
    "gate_refused": "the policy forbids this: ask a human, and do not look for a way around",
    "held": "a human decides; send the same again after the decision",
    "operator_stopped": "a human stopped you in this session: wait until you may go on",
    "unfinished": "another operator has an unfinished line at the prompt: try again later",
    "from_inside": "a human must start this server outside of every session",
    "once_used": "use a new key for a new act",
    "fenced": "the session lives at another machine, or its lease is lost: ask a human",
    "nested": "use another session",
    "saved": "a human restores the session from its checkpoint",
    "unavailable": "try again; commands of the session go on",
    "peer_fault": "ask a human to run the same release on both sides",
    "contradicted": "ask a human: the record of the machine contradicts itself",
    "wrong_pin": "ask a human to compare the address of the relay",
    "lost": "that output is gone; screen has a present cursor",
    "impossible": "the message has the reason",
    "outcome_unknown": "look first (screen), or repeat with the same once key",
    "timed_out": "try again with a longer wait_s",
}


def for_agents(error: HoldfastError) -> HoldfastError:
    """The same error, with advice that an agent can follow."""
    if for_programs(error).recover in (*OF_SDK.values(), ""):
        names = (getattr(kind, "name", "") for kind in type(error).__mro__)
        error.recover = next(ADVICE[name] for name in names if name in ADVICE)
    return error


def refused(error: HoldfastError) -> Json:
    """The result of a call that was refused."""
    for_agents(error)
    return {
        "state": "refused",
        "error": f"{error.name}: {error.message}",
        "recover": error.recover,
        "retry_safe": error.retry_safe,
    }
