"""The advice in an error, for a client of HTTP: requests and headers instead of commands."""

from __future__ import annotations

from typing import Final

from holdfast.model.advice import without_commands
from holdfast.model.errors import HoldfastError

TOKENS: Final = "the administrator of this server makes tokens and gives them rights"
ADVICE: Final = {  # an error without a row has the advice of the error above it
    "error": "the message has the reason",
    "usage": "GET /openapi.json has the fields of each request",
    "ambiguous": "give the whole id",
    "not_found": "GET /v1/ls?all=true lists the sessions",
    "saved": "POST /v1/restore brings the session back",
    "refused": "the message has the reason; GET /v1/get shows the session as it is",
    "not_allowed": TOKENS,
    "turn_held": "POST /v1/turn with act request asks its holder, POST /v1/seize takes it",
    "busy": "GET /v1/wait?for=idle waits for the program; POST /v1/send steers it",
    "gate_refused": "the policy of the machine has the rule; an operator can change it",
    "held": "GET /v1/approvals has the act; repeat the request after the decision",
    "operator_stopped": "another operator has to let this operator go on",
    "unfinished": "wait until the line is entered or cleared, or POST /v1/seize",
    "from_inside": "run the server outside of every session",
    "once_used": "use a new Idempotency-Key for a new act",
    "nested": "use another session",
    "unavailable": "try again; sessions keep running",
    "peer_fault": "run the same release on both sides",
    "contradicted": "ask the administrator of the machine, and keep the receipts of the home",
    "wrong_pin": "the administrator compares the address of the relay",
    "lost": "GET /v1/get has the range of output that is still kept",
    "impossible": "the message has the reason; the machine's administrator can run its checks",
    "outcome_unknown": "look first (GET /v1/view), or repeat with the same Idempotency-Key",
    "timed_out": "try again with a longer timeout",
}


def for_http(error: HoldfastError) -> HoldfastError:
    """The same error, with advice that a client of HTTP can follow."""
    return without_commands(error, ADVICE)
