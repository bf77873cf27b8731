"""A human decides what a contained session gets; an agent's request can only narrow it."""

from __future__ import annotations

import pytest

from holdfast.core.containment.terms import (
    Asked,
    Configured,
    Share,
    agree,
    parse_share,
    workspace_for_agent,
)
from holdfast.model.errors import NotAllowed, Usage

SET = Configured(
    share=(Share("/data", True), Share("/books")),
    workspaces=("/home/u/src",),
    doors=("dbus", "ssh-agent"),
    net="own",
)


def test_a_human_adds_to_the_configuration() -> None:
    asked = Asked((Share("/more"),), ("gpu",), "host", True)
    terms = agree(SET, asked, human=True)
    assert terms.share == (Share("/data", True), Share("/books"), Share("/more"))
    assert terms.doors == ("dbus", "ssh-agent", "gpu")
    assert terms.net == "host" and terms.keep_home


def test_an_agent_gets_the_configuration_without_the_ssh_agent() -> None:
    terms = agree(SET, Asked(), human=False)
    assert terms.share == SET.share and terms.doors == ("dbus",) and terms.net == "own"


@pytest.mark.parametrize(
    "asked",
    [
        Asked((Share("/more"),)),
        Asked((Share("/"),)),
        Asked((Share("/books", True),)),
        Asked((Share("/data2"),)),
        Asked(doors=("gpu",)),
        Asked(doors=("ssh-agent",)),
        Asked(net="host"),
        Asked(keep_home=True),
    ],
)
def test_a5_an_agent_cannot_widen(asked: Asked) -> None:
    with pytest.raises(NotAllowed):
        agree(SET, asked, human=False)
    agree(SET, asked, human=True)


def test_an_agent_can_narrow() -> None:
    asked = Asked((Share("/data"), Share("/home/u/src/x", True)), ("dbus",), "none")
    terms = agree(SET, asked, human=False)
    assert Share("/data") in terms.share and Share("/data", True) not in terms.share
    assert Share("/home/u/src/x", True) in terms.share
    assert terms.net == "none"


def test_the_workspace_of_an_agent_is_a_listed_one() -> None:
    assert workspace_for_agent(SET, "/home/u/src/app/x") == "/home/u/src"
    assert workspace_for_agent(SET, "/home/u/src2") == ""
    assert workspace_for_agent(SET, "/home/u") == ""


def test_unknown_words_are_refused_for_everybody() -> None:
    for asked in (Asked(doors=("x11",)), Asked(net="all"), Asked((Share("/a"),) * 33)):
        with pytest.raises(Usage):
            agree(SET, asked, human=True)


def test_a_share_says_how() -> None:
    assert parse_share("/a") == Share("/a")
    assert parse_share("/a:rw") == Share("/a", True)
    assert parse_share("/a:ro") == Share("/a")
    assert parse_share("/a:b") == Share("/a:b")
