from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import rights
from holdfast.model.errors import Usage


@given(st.sets(st.sampled_from(sorted(rights.RIGHTS)), min_size=1))
def test_a5_rights_are_written_and_read_back(some: set[str]) -> None:
    assert rights.parse(rights.show(some)) == some


def test_a5_bundles_contain_each_other() -> None:
    assert rights.READ < rights.EXECUTE < rights.ADMIN
    assert rights.parse("execute, halt") == rights.EXECUTE | {"halt"}
    assert not rights.READ & {"input", "run", "signal", "resize", "end", "grant", "halt"}, (
        "reading changes nothing"
    )


@pytest.mark.parametrize("text", ["", " , ", "root", "admin,typing", "ADMIN"])
def test_bad_rights_are_named(text: str) -> None:
    with pytest.raises(Usage) as e:
        rights.parse(text)
    assert "observe" in e.value.recover
