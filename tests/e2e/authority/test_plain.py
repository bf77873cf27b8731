"""Agents join contained sessions only, unless a person allows a plain one (T4, A5)."""

from __future__ import annotations

import pytest

from tests.support.installation import Installation


@pytest.fixture(scope="module", autouse=True)
def people(hf: Installation) -> None:
    hf.people("bot", rights="execute", kind="agent", plain=False)
    hf.people("boss", rights="admin", kind="agent", plain=False)
    hf.people("ann", rights="execute")
    hf.ok("new", "plain", "--no-attach")


def test_t4_an_agent_steers_a_plain_session_only_if_a_person_allowed_it(hf: Installation) -> None:
    hf.ok("--as", "ann", "run", "plain", "--", "true")  # a person needs no such right
    hf.ok("--as", "ann", "turn", "plain", "release")
    refused = hf.cli("--as", "bot", "run", "plain", "--", "true")
    assert refused.rc == 255 and "plain session" in refused.err
    assert "holdfast grant bot --rights plain" in refused.err
    assert hf.cli("--as", "bot", "send", "plain", "x").rc == 4
    assert hf.cli("--as", "boss", "run", "plain", "--", "true").rc == 255  # in no bundle
    hf.ok("--as", "bot", "view", "plain")  # an agent may observe
    # No agent gives the right, also not one with all other rights.
    assert "only a person" in hf.cli("--as", "boss", "grant", "bot", "--rights", "plain").err
    first = hf.ok("grant", "bot", "--rights", "execute,plain", "--session", "plain")
    assert "read your files and keys" in first.err  # the meaning, once
    assert hf.ok("grant", "bot", "--rights", "execute,plain", "--session", "plain").err == ""
    hf.ok("--as", "bot", "run", "plain", "--", "true")
    hf.ok("new", "second", "--no-attach")
    assert hf.cli("--as", "bot", "run", "second", "--", "true").rc == 255
    hf.ok("operator", "revoke", "bot")


def test_t4_an_agent_steers_a_contained_session_as_before(hf: Installation) -> None:
    made = hf.cli("new", "walled", "--contained", "--no-attach")
    if made.rc == 7:
        pytest.skip(f"no contained sessions here: {made.err}")
    hf.ok("--as", "boss", "run", "walled", "--", "true")
