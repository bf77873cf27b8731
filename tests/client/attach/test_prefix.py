from __future__ import annotations

from holdfast.client.attach.prefix import Prefix


def test_a_prefix_key_is_found_and_the_keys_around_it_are_typed() -> None:
    prefix = Prefix(b"\x1c")
    assert prefix.partition(b"ls\x1cd rest") == (b"ls", b"\x1c", b"d rest")
    assert prefix.partition(b"plain") == (b"plain", b"", b"")


def test_a_paste_is_text_and_no_command() -> None:
    prefix = Prefix(b"\x1c")
    pasted = b"\x1b[200~echo A\x1cd B\x1b[201~"
    assert prefix.partition(pasted + b"\x1cd") == (pasted, b"\x1c", b"d")
    assert prefix.partition(b"\x1b[200~half \x1cd") == (b"\x1b[200~half \x1cd", b"", b"")
    assert prefix.partition(b"more \x1cd") == (b"more \x1cd", b"", b"")
    assert prefix.partition(b"end\x1b[201~x\x1cd") == (b"end\x1b[201~x", b"\x1c", b"d")
