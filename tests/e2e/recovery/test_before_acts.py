"""R2, P4: a rule of the policy wants a checkpoint before an act."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.installation import Installation, eventually, installation
from tests.support.recovery.checkpoint import criu, unsavable

POLICY = """version = 1
extends = "default"
[[rule]]
name = "save first"
verdict = "checkpoint"
because = "it may have to be taken back"
when = { command = ["touch risky"] }
"""


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    criu()
    with installation(tmp_path_factory.mktemp("before")) as made:
        made.ok("up", "--detach")
        (made.home / "policy.toml").write_text(POLICY)
        yield made


def test_r2_the_session_is_saved_before_the_act_and_only_then(hf: Installation) -> None:
    made = hf.ready("work", "--contained")
    hf.quick("run", "work", "--", "X=before")
    hf.quick("run", "work", "--", "true")
    assert hf.ok("checkpoint", "work", "--list", "--json").json == []
    hf.quick("run", "work", "--", "touch risky; X=after")
    [saved] = hf.ok("checkpoint", "work", "--list", "--json").json
    assert saved["by"] == "host" and (hf.user / "risky").exists()
    record = map(json.loads, hf.ok("log", "work", "--json").out.splitlines())
    said = f"{saved['checkpoint']} was saved before"
    assert [one for one in record if (one["reason"] or "").endswith(said)]
    os.kill(made["keeper"], signal.SIGKILL)
    eventually(lambda: hf.get("work")["state"] == "ended" or None, "the end of the session")
    hf.ok("restore", "work")
    assert hf.ok("run", "work", "--", "echo $X").out == "before\n"


def test_r2_a_session_that_cannot_be_saved_refuses_the_act(hf: Installation) -> None:
    unsavable(hf.get(hf.ready("plain", "--plain")["id"])["keeper"])
    hf.ok("run", "plain", "--", "touch harmless")
    refused = hf.cli("run", "plain", "--", "touch risky; touch risky-too")
    assert refused.rc == 255
    assert "the rule 'save first' wants a checkpoint before this act" in refused.err
    assert "it is a plain session" in refused.err and not (hf.user / "risky-too").exists()
