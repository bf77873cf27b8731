"""What is known of programs by their name: what they write to, whether they reach the network, which of their words are paths.

Advice, not a sandbox: `make` and `./script` write wherever they like, and nothing here knows. What the table is for are the few
dozen programs whose whole purpose is in their arguments, so that a rule can speak of "writes outside of the project" and mean
`cp`, `tee` and `sed -i` as well as `>`. A word that cannot be known in a program that writes makes the command unresolvable; so
does a pattern in one that destroys.

When you add a program: say which options take a value (or the value is taken for a file), and which words it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.core.words import Word


class Spec(NamedTuple):
    writes: str  # which operands: all, last, rest (all but the first), none
    valued: str = ""  # options that take the next word, separated by blanks
    targets: str = ""  # those of them whose value is written to
    destroys: bool = False  # what it writes to is gone, or spoilt, afterwards


_CP: Final = Spec("last", "-S --suffix -t --target-directory", "-t --target-directory")
_MODE: Final = Spec("rest", "--reference", "", True)
_PACK: Final = Spec("all", "-S --suffix -b -T --threads")
_DISK: Final = Spec("all", "-L -U -t -b -E -n -o -s -a", "", True)
SPECS: Final[dict[str, Spec]] = {
    "rm": Spec("all", destroys=True),
    "rmdir": Spec("all", destroys=True),
    "unlink": Spec("all", destroys=True),
    "shred": Spec("all", "-n --iterations -s --size", "", True),
    "truncate": Spec("all", "-s --size -r --reference", "", True),
    "mv": Spec("all", _CP.valued, _CP.targets, True),
    "cp": _CP,
    "ln": Spec("last", _CP.valued, _CP.targets),
    "install": Spec("last", "-m --mode -o --owner -g --group " + _CP.valued, _CP.targets),
    "touch": Spec("all", "-d --date -t -r --reference"),
    "mkdir": Spec("all", "-m --mode"),
    "mkfifo": Spec("all", "-m --mode"),
    "mknod": Spec("all", "-m --mode"),
    "tee": Spec("all"),
    "chmod": _MODE,
    "chown": _MODE,
    "chgrp": _MODE,
    "chattr": _MODE,
    "setfacl": _MODE,
    "gzip": _PACK,
    "gunzip": _PACK,
    "bzip2": _PACK,
    "bunzip2": _PACK,
    "xz": _PACK,
    "unxz": _PACK,
    "zstd": _PACK,
    "rsync": Spec(
        "last",
        "-e --rsh --exclude --include --exclude-from --include-from --files-from -f --filter --bwlimit --timeout --port",
    ),
    "scp": Spec("last", "-P -i -o -F -J -l -S -c"),
    "patch": Spec(
        "all", "-p -i --input -d --directory -o --output -F", "-d --directory -o --output"
    ),
    "unzip": Spec("none", "-d -x -P", "-d"),
    "curl": Spec(
        "none",
        "-o --output --output-dir -d --data --data-binary --data-raw -H --header -X "
        "--request -u --user -A --user-agent -e --referer -F --form -T --upload-file -b --cookie -c --cookie-jar -x --proxy -m --max-time "
        "--connect-timeout --retry -w --write-out -K --config -E --cert --key --cacert -D --dump-header",
        "-o --output --output-dir -c --cookie-jar -D --dump-header",
    ),
    "wget": Spec(
        "none",
        "-O --output-document -P --directory-prefix -o --output-file -a -i --input-file -U --user-agent --header --post-data "
        "--post-file -t -T -Q -l -A -R",
        "-O --output-document -P --directory-prefix -o --output-file -a",
    ),
    "split": Spec("last", "-b -l -n -a -C"),
    "wipefs": _DISK,
    "mkswap": _DISK,
    "blkdiscard": _DISK,
    "fdisk": _DISK,
    "sfdisk": _DISK,
    "sgdisk": _DISK,
    "parted": _DISK,
    "mke2fs": _DISK,
    "badblocks": _DISK,
    "mkfs": _DISK,
}
QUIET: Final = frozenset(
    (
        ":",
        "true",
        "false",
        "test",
        "[",
        "export",
        "declare",
        "local",
        "readonly",
        "typeset",
        "exit",
        "return",
        "set",
        "shopt",
        "wait",
        "sleep",
        "seq",
        "expr",
        "kill",
        "pkill",
        "killall",
        "date",
        "type",
        "command",
    )
)  # whose words are no paths
NETWORK: Final = frozenset(
    (
        "curl",
        "wget",
        "ssh",
        "scp",
        "sftp",
        "rsync",
        "ftp",
        "nc",
        "ncat",
        "netcat",
        "telnet",
        "socat",
        "ping",
        "dig",
        "nslookup",
        "host",
        "aria2c",
        "http",
        "https",
        "gh",
        "glab",
        "aws",
        "gcloud",
        "az",
        "kubectl",
        "helm",
        "rclone",
        "mosh",
        "nmap",
        "whois",
    )
)
NETWORK_SUB: Final = frozenset(
    f"git {s}" for s in ("push", "pull", "fetch", "clone", "ls-remote", "remote update")
) | frozenset(
    f"{tool} {s}"
    for tool, subs in {
        "npm": ("install", "i", "ci", "publish", "update"),
        "yarn": ("add", "install", "publish"),
        "pnpm": ("add", "install", "publish"),
        "pip": ("install", "download"),
        "pip3": ("install", "download"),
        "uv": ("add", "sync", "publish", "pip"),
        "cargo": ("install", "publish", "add", "fetch"),
        "go": ("get", "install"),
        "docker": ("pull", "push", "login"),
        "podman": ("pull", "push", "login"),
        "apt": ("install", "update"),
        "apt-get": ("install", "update"),
        "gem": ("install", "push"),
        "twine": ("upload",),
    }.items()
    for s in subs
)
# Options before a subcommand that take the next word.
SUB_VALUED: Final[dict[str, str]] = {
    "git": "-C -c --git-dir --work-tree --namespace --exec-path --config-env",
    "docker": "-H --host --context -c -l --log-level --config",
    "podman": "-H --host --context -c --connection",
    "kubectl": "-n --namespace --context --cluster --kubeconfig -s --server --user",
    "systemctl": "-H --host -M --machine -t --type -p --property",
    "npm": "--prefix -w --workspace",
    "yarn": "--cwd",
    "pnpm": "-C --dir --filter",
    "cargo": "-C --config -Z",
    "helm": "-n --namespace --kube-context",
    "gh": "-R --repo",
    "aws": "--profile --region --endpoint-url --output",
    "gcloud": "--project --account --configuration",
    "apt-get": "-o -c -t",
    "apt": "-o -c -t",
    "pip": "--python --proxy --log",
    "terraform": "-chdir",
}
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Operands(NamedTuple):
    plain: list[Word]  # words that are no options
    values: list[tuple[str, Word]]  # option, its value


def flags(words: Sequence[Word]) -> frozenset[str]:
    """`-rf` is -r, -f and -rf itself; `--force=x` is --force."""
    found = set[str]()
    for text in (w.text for w in words):
        if text == "--":
            break
        if text is None or not text.startswith("-") or text == "-":
            continue
        if text.startswith("--"):
            found.add(text.partition("=")[0])
        else:
            found.add(text.partition("=")[0])
            found.update(f"-{c}" for c in text[1:].partition("=")[0])
    return frozenset(found)


def operands(words: Sequence[Word], valued: str) -> Operands:
    takes = valued.split()
    plain, values = list[Word](), list[tuple[str, Word]]()
    at, ended = 0, False
    while at < len(words):
        word = words[at]
        text = word.text
        at += 1
        if ended or text is None or not text.startswith("-") or text == "-":
            plain.append(word)
        elif text == "--":
            ended = True
        elif text.startswith("--"):
            name, given, value = text.partition("=")
            if given:
                values.append((name, Word(value, value, -1 if word.glob_at < 0 else 0)))
            elif name in takes and at < len(words):
                values.append((name, words[at]))
                at += 1
        elif text in takes and at < len(words):
            values.append((text, words[at]))
            at += 1
        else:
            for i, c in enumerate(text[1:], 1):
                if f"-{c}" in takes:
                    rest = text[i + 1 :]
                    if rest:
                        values.append((f"-{c}", Word(rest, rest)))
                    elif at < len(words):
                        values.append((f"-{c}", words[at]))
                        at += 1
                    break
    return Operands(plain, values)


def subcommands(name: str, words: Sequence[Word]) -> list[Word]:
    """The operands in order, options before the first of them skipped: `git -C x push origin` gives push, origin."""
    return operands(words, SUB_VALUED.get(name, "")).plain


def network(name: str, words: Sequence[Word]) -> bool:
    if name in NETWORK:
        return True
    rest = [w.text or "" for w in subcommands(name, words)[:2]]
    return any(f"{name} {' '.join(rest[:n])}" in NETWORK_SUB for n in (1, 2)) or any(
        _URL.match(w.text or "") for w in words if name in ("pip", "npm")
    )


def spec(name: str) -> Spec | None:
    return _DISK if name.startswith("mkfs.") else SPECS.get(name)


def written(name: str, words: Sequence[Word], has: frozenset[str]) -> list[Word]:
    """The words this command writes to, for the programs that are known."""
    if name == "dd":
        return [
            Word(w.text[3:], w.text[3:])
            for w in words
            if w.text is not None and w.text.startswith("of=")
        ]
    if name == "sed":
        given = operands(
            words,
            "-e --expression -f --file -l -i"
            if "-i" not in has
            else "-e --expression -f --file -l",
        )
        if not (has & {"-i", "--in-place"} or any(f.startswith("-i") for f in has)):
            return []
        own = any(o in ("-e", "--expression", "-f", "--file") for o, _ in given.values)
        return given.plain if own else given.plain[1:]
    if name == "tar":
        return _tar(words)
    if name == "find":
        return list(words[: _leading(words)] or [Word(".", ".")]) if has & {"-delete"} else []
    if name == "git":
        subs = subcommands(name, words)
        return subs[2:3] if subs and subs[0].text == "clone" else []
    what = spec(name)
    if what is None:
        return []
    given = operands(words, what.valued)
    found = [value for option, value in given.values if option in what.targets.split()]
    plain = given.plain
    if what.writes == "all" or (name == "install" and "-d" in has):
        return found + plain
    if what.writes == "rest":
        return found + (plain if "--reference" in has else plain[1:])
    if what.writes == "last" and not found:
        return plain[-1:] if len(plain) > 1 else [Word(".", ".")] if name == "ln" else []
    if (name in ("wget", "unzip") and not found) or (
        name == "curl" and has & {"-O", "--remote-name"}
    ):
        return [*found, Word(".", ".")]
    return found


def _tar(words: Sequence[Word]) -> list[Word]:
    first = words[0].text if words else None
    if first and not first.startswith("-"):
        words = [Word(f"-{first}", first), *words[1:]]
    given = operands(words, "-f --file -C --directory -T -X --exclude")
    has = flags(words)
    places = [v for o, v in given.values if o in ("-C", "--directory")]
    if has & {"-x", "--extract", "--get"}:
        return places or [Word(".", ".")]
    if has & {"-c", "--create", "-r", "--append", "-u", "--update"}:
        return [v for o, v in given.values if o in ("-f", "--file")]
    return []


def _leading(words: Sequence[Word]) -> int:
    """How many words `find` takes for places: up to its first condition."""
    for n, word in enumerate(words):
        if word.text is not None and (
            (word.text.startswith("-") and word.text not in ("-H", "-L", "-P"))
            or word.text in ("(", "!")
        ):
            return n
    return len(words)


def spoils(name: str, has: frozenset[str]) -> bool:
    """Whether a pattern is too much: what it matches would be gone, or changed all the way down."""
    what = spec(name)
    if name == "find":
        return "-delete" in has
    if what is None or not what.destroys:
        return name == "dd"
    return name not in ("chmod", "chown", "chgrp", "chattr", "setfacl", "mv") or bool(
        has & {"-R", "--recursive"}
    )


def path_words(name: str, words: Sequence[Word]) -> Iterator[Word]:
    """Every word, or part of a word, that may be a path."""
    if name in QUIET:
        return
    ended = False
    for word in words:
        text = word.text
        if text is None or not text:
            continue
        if text == "--":
            ended = True
        elif not ended and text.startswith("-") and text != "-":
            value = (
                text.partition("=")[2]
                if "=" in text
                else text[2:]
                if text[2:3] in ("/", "~", ".")
                else ""
            )
            if value:
                yield Word(value, value)
        else:
            yield from _pieces(word, text)


def _pieces(word: Word, text: str) -> Iterator[Word]:
    if text.startswith("file://"):
        yield Word(text[7:], text[7:])
        return
    if _URL.match(text):
        return
    yield word
    for piece in (
        text.partition("=")[2],
        text[1:] if text.startswith("@") else "",
        *(p for p in text.split(":")[1:] if p.startswith("/")),
    ):
        if piece:
            yield Word(piece, piece)
    if ":" in text and text.startswith("/"):
        yield Word(text.partition(":")[0], text.partition(":")[0])
