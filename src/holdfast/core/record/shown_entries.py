"""Entries of a record as a reader is shown them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.model.jsontext import Json


def named_redactions(entries: list[Json]) -> list[Json]:
    """The entries; those without their content name the operator that redacted them."""
    by = {
        seq: e["actor"]
        for e in entries
        if e["kind"] == "redact" and e["attestation"] == "host"
        for seq in e["facts"].get("seqs") or ()
    }
    return [
        {**e, "redacted_by": by[e["seq"]]}
        if e["kept"] and e["content"] is None and e["seq"] in by
        else e
        for e in entries
    ]
