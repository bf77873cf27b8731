"""Values of git's configuration files, without running git. Included files are not followed.

Of a person only `user.name` and `user.email` are read. Other lines of the files may name programs
or credentials, and stay outside of a contained session. Of a repository only `core.hooksPath` and
`core.worktree` are read.
"""

from __future__ import annotations

from collections.abc import Iterable

KEYS = ("name", "email")
VALUE_CHARS = 256


def read(texts: Iterable[str]) -> dict[str, str]:
    """`name` and `email` as git would find them in these files; a later file counts more."""
    found = _values(texts, "user", KEYS)
    return {key: value[:VALUE_CHARS] for key, value in found.items()}


def hooks_path(texts: Iterable[str]) -> tuple[str, str]:
    """`core.hooksPath` and `core.worktree` of a repository; "" if not set."""
    found = _values(texts, "core", ("hookspath", "worktree"))
    return found.get("hookspath", ""), found.get("worktree", "")


def _values(texts: Iterable[str], wanted: str, keys: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        section = ""
        for line in text.replace("\\\n", "").splitlines():
            line = line.strip()
            if line.startswith("["):
                section, _, line = line[1:].partition("]")
                section, line = section.strip().lower(), line.strip()
            key, equals, value = line.partition("=")
            key = key.strip().lower()
            if section == wanted and equals and key in keys and (plain := _value(value)):
                found[key] = plain
    return found


def write(identity: dict[str, str]) -> str:
    """A configuration file with these values only."""
    lines = [f'\t{key} = "{_escaped(identity[key])}"' for key in KEYS if key in identity]
    return "\n".join(("[user]", *lines, "")) if lines else ""


def _value(text: str) -> str:
    """A value: quotes group, a backslash escapes, `#` and `;` outside of quotes end it."""
    out, quoted, characters = list[str](), False, iter(text.strip())
    for one in characters:
        if one == "\\":
            out.append({"n": " ", "t": " ", "b": ""}.get(after := next(characters, ""), after))
        elif one == '"':
            quoted = not quoted
        elif one in "#;" and not quoted:
            break
        else:
            out.append(one)
    return "".join(c for c in "".join(out).strip() if c.isprintable())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
