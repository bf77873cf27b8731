"""Decides whether this processor can run programs that began on another.

A program looks once which instructions the processor has, and uses them for the rest of its life.
So a restore needs every feature of the first processor that programs may use. The names are those
of /proc/cpuinfo; features of the kernel and of its protections, which come and go with a kernel's
version, do not count.
"""

from __future__ import annotations

import re
from typing import Final

NAMED_MAX: Final = 6
# On x86 by name; of other processors the kernel lists only what programs may use.
_X86 = re.compile(
    r"(3dnow|abm|adx|aes|amx_|avx|bmi|clflushopt|clwb|clzero|cmov|cx8|cx16|enqcmd|f16c|fma"
    r"|fsgsbase|fxsr|gfni|lahf_lm|lzcnt|mmx|movbe|movdir|pclmulqdq|pku|popcnt"
    r"|prefetch|rdpid|rdrand|rdseed|rdtscp|rtm|serialize|sha|sse|ssse|tbm|tsc$|user_shstk"
    r"|vaes|vpclmulqdq|waitpkg|xop|xsave|xgetbv)"
)


def features(cpuinfo: str) -> list[str]:
    """Features that every processor in /proc/cpuinfo has and programs may use."""
    found = list[set[str]]()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            found.append({one for one in value.split() if _X86.match(one)})
        elif name.strip() == "Features":
            found.append({*value.split()})
    return sorted(set.intersection(*found)) if found else []


def missing(saved: str, here: list[str]) -> list[str]:
    """Features of a list (words in a text) that are not here. An empty text names none."""
    return sorted({*saved.split()} - {*here})


def explain(lacking: list[str]) -> str:
    named = ", ".join(lacking[:NAMED_MAX])
    more = f" and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
    return f"this processor lacks {named}{more}, which its programs may use"
