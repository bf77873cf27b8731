#!/usr/bin/env python3
"""Verify an exported record of Holdfast.

This program shares no code with Holdfast. It was written from docs/reference/record.md, and uses
`cryptography` for Ed25519.

    verify_record.py EXPORT [--kept FILE] [--machine KEY]

The program prints one finding per line and exits with 0 if the record is intact, 1 otherwise.
`--kept` names a file with heads and acks from earlier. `--machine` is the key of the machine from a
trusted source: without the key, the export is only consistent with itself.
"""

import base64
import hashlib
import json
import os
import re
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ALWAYS = {
    "v",
    "seq",
    "time",
    "session",
    "epoch",
    "phase",
    "kind",
    "actor",
    "modality",
    "attestation",
    "originators",
    "prev",
}
PERHAPS = {
    "key",
    "client",
    "first",
    "number",
    "act",
    "verdict",
    "reason",
    "intent",
    "outcome",
    "facts",
    "statement",
    "signature",
    "commit",
    "kept",
    "late",
}
CONTENT_KINDS = {
    "command",
    "line",
    "paste",
    "resize",
    "signal",
    "turn",
    "seize",
    "halt",
    "resume",
    "end",
    "rename",
    "grant",
    "revoke",
    "approve",
    "deny",
    "policy",
    "spawn",
    "operator",
    "invite",
    "forget",
    "down",
    "relays",
    "redact",
    "forward",
    "save",
    "restore",
    "reap",
    "drain",
    "files",
}


class Bad(Exception):
    pass


# ---- bytes


def canonical(data):
    """The value of canonical JSON bytes; fails for any other encoding."""

    def refuse(text):
        raise Bad(f"{text[:20]} is not a whole number")

    def walk(value, depth):
        if depth > 8:
            raise Bad("nested too deep")
        if isinstance(value, dict):
            for item in value.values():
                walk(item, depth + 1)
        elif isinstance(value, list):
            for item in value:
                walk(item, depth + 1)
        elif (
            isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64
        ):
            raise Bad("a number beyond 64 bits")

    try:
        value = json.loads(data.decode("utf-8"), parse_float=refuse, parse_constant=refuse)
        walk(value, 0)
        again = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8"
        )
    except (ValueError, RecursionError) as e:
        raise Bad(f"cannot be read: {str(e)[:80]}") from e
    if again != data:
        raise Bad("not the canonical spelling")
    return value


def blake(data):
    return hashlib.blake2b(data, digest_size=32).hexdigest()


KEYS = {}


def public_key(text):
    """The public key in `ed25519:` and base64url, or None."""
    if text not in KEYS:
        KEYS[text] = None
        if isinstance(text, str) and re.fullmatch(r"ed25519:[A-Za-z0-9_-]{43}", text):
            raw = base64.urlsafe_b64decode(text[8:] + "=")
            if base64.urlsafe_b64encode(raw).decode().rstrip("=") == text[8:]:
                KEYS[text] = Ed25519PublicKey.from_public_bytes(raw)
    return KEYS[text]


def signed(key, domain, message, signature):
    key = public_key(key)
    if key is None:
        return False
    try:
        key.verify(bytes.fromhex(signature), b"holdfast/" + domain + b"\0" + message)
    except (InvalidSignature, ValueError):
        return False
    return True


# ---- types


def text(value):
    return isinstance(value, str)


def hexes(digits):
    return lambda value: (
        isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", value) is not None
    )


def whole(low, high):
    return lambda value: type(value) is int and low <= value < high


def among(*values):
    return lambda value: isinstance(value, str) and value in values


TYPES = {
    "v": whole(1, 2),
    "seq": whole(1, 2**63),
    "time": whole(0, 2**63),
    "session": lambda v: text(v) and v != "",
    "epoch": whole(0, 2**63),
    "phase": among("intent", "outcome", "fact"),
    "kind": lambda v: text(v) and re.fullmatch(r"[a-z][a-z0-9._-]{0,31}", v) is not None,
    "actor": text,
    "modality": text,
    "attestation": lambda v: (
        text(v)
        and re.fullmatch(r"actor-signed|channel|host|bridge:[A-Za-z0-9._][A-Za-z0-9._-]{0,63}", v)
        is not None
    ),
    "originators": lambda v: isinstance(v, list) and all(map(text, v)),
    "prev": hexes(64),
    "key": lambda v: text(v) and public_key(v) is not None,
    "client": hexes(16),
    "first": whole(0, 2**64),
    "number": whole(0, 2**64),
    "act": whole(0, 2**64),
    "verdict": among("allow", "refuse", "hold"),
    "reason": text,
    "intent": whole(1, 2**63),
    "outcome": among("applied", "failed", "void", "unknown"),
    "facts": lambda v: isinstance(v, dict),
    "statement": text,
    "signature": hexes(128),
    "commit": hexes(64),
    "kept": lambda v: v is True,
    "late": lambda v: v is True,
}
HEAD = {
    "v": TYPES["v"],
    "session": text,
    "seq": whole(0, 2**63),
    "hash": hexes(64),
    "time": TYPES["time"],
}
ACK = {**HEAD, "seq": TYPES["seq"], "client": TYPES["client"], "number": TYPES["number"]}
HEADER = {
    "v": TYPES["v"],
    "machine": TYPES["key"],
    "session": text,
    "name": text,
    "first": TYPES["seq"],
    "last": whole(0, 2**63),
    "hash": hexes(64),
    "heads": whole(0, 2**63),
    "time": TYPES["time"],
    "operators": lambda v: (
        isinstance(v, list)
        and all(
            isinstance(o, dict)
            and set(o) == {"name", "keys"}
            and text(o["name"])
            and isinstance(o["keys"], list)
            and all(map(text, o["keys"]))
            for o in v
        )
    ),
}
SIGNED = {"header": (b"export/1", HEADER), "head": (b"head/1", HEAD), "ack": (b"ack/1", ACK)}


def line_of(raw):
    if not raw.endswith(b"\n"):
        raise Bad("a line is cut off")
    value = canonical(raw[:-1])
    if not isinstance(value, dict) or not all(map(text, value.values())):
        raise Bad("a line that says nothing")
    return value


def read_signed(raw, machine):
    outer = line_of(raw)
    names = set(outer) - {"signature"}
    if len(outer) != 2 or len(names) != 1 or not names <= set(SIGNED):
        raise Bad("neither an entry nor anything signed")
    name = names.pop()
    domain, types = SIGNED[name]
    body = canonical(outer[name].encode())
    if (
        not isinstance(body, dict)
        or set(body) != set(types)
        or not all(types[f](body[f]) for f in types)
    ):
        raise Bad(f"a {name} of another version or with other fields")
    key = body["machine"] if name == "header" else machine
    if not hexes(128)(outer["signature"]) or not signed(
        key, domain, outer[name].encode(), outer["signature"]
    ):
        raise Bad(f"a {name} that this machine did not sign")
    return name, body


# ---- one entry by itself


def misfit(entry):
    """The first broken rule about fields that belong together, or None."""
    kind, attestation, phase = entry["kind"], entry["attestation"], entry["phase"]
    has = set(entry)
    by_signature = attestation == "actor-signed" or attestation.startswith("bridge:")
    rules = [
        ((phase == "outcome") == ("outcome" in has), "`outcome` belongs to outcomes"),
        (
            phase != "outcome" or ("intent" in has and attestation == "host"),
            "an outcome names its intent, in the host's name",
        ),
        (
            phase != "intent"
            or ("intent" not in has and entry.get("verdict") not in ("refuse", "hold")),
            "an intent that was not allowed",
        ),
        (
            not by_signature
            or {"key", "client", "number", "statement", "signature", "commit"} <= has,
            "said to be signed, and is not",
        ),
        (
            by_signature or not {"statement", "signature"} & has,
            "a signature without its attestation",
        ),
        (
            attestation != "channel"
            or (kind == "keys" and {"key", "client", "first", "number"} <= has),
            "only keys are attested by a channel",
        ),
        (
            kind not in ("keys", "cover") or {"client", "first", "number"} <= has,
            "keys without client or range",
        ),
        (
            "first" not in has or 0 <= entry.get("number", -1) - entry["first"] < 1_000_000,
            "a range that ends before it begins, or never",
        ),
    ]
    return next((why for holds, why in rules if not holds), None)


def check_entry(entry, outer, machine, say):
    """Check one entry by itself; returns its `seen` if the statement can be trusted."""
    has, kind, attestation = set(entry), entry["kind"], entry["attestation"]
    if "content" in outer:
        try:
            content = base64.b64decode(outer["content"], validate=True)
            if base64.b64encode(content).decode() != outer["content"] or not hexes(32)(
                outer["salt"]
            ):
                raise ValueError
            if "kept" not in has or blake(bytes.fromhex(outer["salt"]) + content) != entry.get(
                "commit"
            ):
                say("broken", "content", "not what was committed to")
        except ValueError:
            say("broken", "content", "cannot be read")
        if kind not in CONTENT_KINDS:
            say("broken", "secret", "content that must never be stored")
    if "statement" not in has:
        return None
    statement = entry["statement"].encode()
    if not signed(entry.get("key"), b"act/1", statement, entry["signature"]):
        say("broken", "signature", "not signed by the key it names")
        return None
    expected = {
        "v": 1,
        "machine": machine,
        "session": entry["session"],
        "epoch": entry["epoch"],
        "client": entry.get("client"),
        "number": entry.get("number"),
        "kind": "keys" if kind == "cover" else kind,
        "commit": entry.get("commit"),
    }
    if "first" in has:
        expected["first"] = entry["first"]
    if attestation.startswith("bridge:"):
        expected["for"] = entry["actor"]
    try:
        said = canonical(statement)
    except Bad as e:
        say("broken", "statement", str(e))
        return None
    if not isinstance(said, dict) or set(said) - {"once"} != set(expected) | {"binding", "seen"}:
        say("broken", "statement", "what was signed has other fields")
        return None
    once = said.get("once", "-")
    wrong = [
        name
        for name, value in expected.items()
        if said[name] != value or type(said[name]) is not type(value)
    ]
    if (
        wrong
        or not (said["seen"] is None or hexes(64)(said["seen"]))
        or not (text(said["binding"]) and re.fullmatch(r"([0-9a-f]{2})*", said["binding"]))
        or not (text(once) and re.fullmatch(r"[ -~]{1,128}", once))
    ):
        say("broken", "statement", f"what was signed says something else: {', '.join(wrong)}")
        return None
    return said["seen"]


# ---- all of them in order


def verify(lines, kept=(), machine=None):
    findings = []

    def say(level, code, seq, why):
        findings.append((level, code, seq, why))

    try:
        name, header = read_signed(lines[0] if lines else b"", None)
        if name != "header":
            raise Bad("it does not begin with a header")
    except Bad as e:
        return [("broken", "header", None, str(e))]
    if machine is not None and machine != header["machine"]:
        say("broken", "machine", None, "signed by another machine than the one named")
    machine, session, first = header["machine"], header["session"], header["first"]
    operators = {o["name"]: set(o["keys"]) for o in header["operators"]}
    hashes, known, expected, prev = {}, set(), first, "0" * 64 if first == 1 else None
    began, epoch, clock = None, 0, 0
    intents, client_keys, done, uncovered, missing, checkpoint = {}, {}, {}, {}, {}, None
    count_heads, last_head = 0, 0

    for raw in lines[1:]:
        if count_heads or raw.startswith((b'{"head":', b'{"ack":', b'{"header":')):
            count_heads += 1
            try:
                name, head = read_signed(raw, machine)
                if (
                    name != "head"
                    or head["session"] != session
                    or head["seq"] <= last_head
                    or hashes.get(head["seq"]) != head["hash"]
                ):
                    raise Bad("a head that is not of this chain")
                last_head = head["seq"]
            except Bad as e:
                say("broken", "head", None, str(e))
            continue
        try:
            outer = line_of(raw)
            if set(outer) not in ({"entry", "hash"}, {"entry", "hash", "content", "salt"}):
                raise Bad("neither an entry nor anything signed")
            entry = canonical(outer["entry"].encode())
            if not isinstance(entry, dict) or not TYPES["seq"](entry.get("seq")):
                raise Bad("an entry without a number")
        except Bad as e:
            say("broken", "line", None, str(e))
            continue
        seq = entry["seq"]
        digest = blake(b"holdfast/entry/1\0" + outer["entry"].encode())
        if digest != outer["hash"]:
            say("broken", "hash", seq, "its hash is another")
        if seq != expected:
            say("broken", "order", seq, f"it stands where {expected} should be")
        elif prev is not None and entry.get("prev") != prev:
            say("broken", "chain", seq, "it does not follow from the entry before it")
        began = began or entry.get("prev")
        expected, prev = seq + 1, digest
        unknown = set(entry) - ALWAYS - PERHAPS
        if unknown or not set(entry) >= ALWAYS or not all(TYPES[f](entry[f]) for f in entry):
            say("broken", "format", seq, "unknown version, unknown fields or wrong types")
            hashes[seq] = digest
            continue
        if misfit(entry):
            say("broken", "phase", seq, misfit(entry))
            hashes[seq] = digest
            continue

        def here(level, code, why, seq=seq):
            say(level, code, seq, why)

        seen = check_entry(entry, outer, machine, here)
        if seen is not None and first == 1 and seen not in known:
            here("broken", "seen", "its actor had seen an entry that is not in this record")
        hashes[seq] = digest
        known.add(digest)
        if entry["session"] != session:
            here("broken", "session", "it belongs to another session")
        if entry["phase"] != "outcome":
            if entry["epoch"] < epoch:
                here("broken", "epoch", "an older epoch")
            epoch = max(epoch, entry["epoch"])
        if "late" not in entry:
            if entry["time"] < clock:
                here("note", "time", "the clock was set back")
            clock = entry["time"]
        kind, phase, attestation = entry["kind"], entry["phase"], entry["attestation"]
        client, number = entry.get("client"), entry.get("number")
        if attestation != "host":
            who = attestation[7:] if attestation.startswith("bridge:") else entry["actor"]
            if entry.get("key") not in operators.get(who, ()):
                here("broken", "actor", f"its key is not one of {who!a}")
            if client_keys.setdefault(client, entry.get("key")) != entry.get("key"):
                here("broken", "client", "its client is that of another key")
        if "kept" in entry and "content" not in outer:
            missing[seq] = True
        mine = done.setdefault(client, set())
        if phase == "intent":
            intents[seq] = [entry["actor"], kind, client, number, entry["epoch"], None]
            if client is not None and number is not None:
                if number in mine:
                    here("broken", "repeated", f"act {number} was done before")
                mine.add(number)
        elif phase == "outcome":
            was = intents.get(entry["intent"])
            if was is None or was[-1] is not None:
                if entry["intent"] >= first:
                    here("broken", "outcome", "no such intent, or it has an outcome already")
            else:
                was[-1] = entry["outcome"]
                if was[:-1] != [entry["actor"], kind, client, number, entry["epoch"]]:
                    here("broken", "outcome", "not the outcome of that intent")
                elif entry["outcome"] == "void":
                    mine.discard(number)
        elif kind in ("keys", "cover"):
            a, b = entry["first"], number
            numbers = set(range(a, b + 1))
            waiting = uncovered.setdefault(client, set())
            if kind == "keys":
                if numbers & mine:
                    here("broken", "repeated", "some of its keys were typed before")
                else:
                    mine |= numbers
                if not numbers & waiting:
                    waiting |= numbers
            elif numbers <= waiting:
                waiting -= numbers
            else:
                here(
                    "broken" if first == 1 else "note",
                    "cover",
                    "it covers keys that nobody typed, or that are covered already",
                )
        elif attestation != "host":
            if entry.get("verdict") not in ("refuse", "hold"):
                if number in mine:
                    here("broken", "repeated", f"act {number} was done before")
                mine.add(number)
        else:
            facts = entry.get("facts", {})
            if kind == "checkpoint":
                checkpoint = (facts.get("through"), facts.get("hash"))
            elif kind == "redact" and isinstance(facts.get("seqs"), list):
                for gone in facts["seqs"]:
                    missing.pop(gone if type(gone) is int else 0, None)
            elif kind == "gap":
                here("note", "gap", "entries before it could not be written")

    last = max(expected - 1, first - 1)
    if (header["last"], header["hash"]) != (last, prev if hashes else "0" * 64):
        say("broken", "truncated", None, f"it should end with entry {header['last']}")
    if first != 1 and checkpoint != (first - 1, began):
        say("broken", "pruned", first, "no checkpoint says that the entries before it were dropped")
    if count_heads != header["heads"]:
        say("broken", "head", None, f"{count_heads} heads where there were {header['heads']}")
    for seq, was in intents.items():
        if was[-1] is None:
            say("note", "open", seq, "an intent without an outcome")
    for seq in missing:
        say(
            "note",
            "content",
            seq,
            "its content is not here, and no entry says that it was taken away",
        )
    for client, waiting in uncovered.items():
        if waiting:
            say(
                "note",
                "uncovered",
                None,
                f"{len(waiting)} inputs of client {client} are attested by their channel only",
            )
    for raw in kept:
        try:
            name, head = read_signed(raw, machine)
        except Bad as e:
            say("broken", "kept", None, str(e))
            continue
        if name == "header":
            continue
        if head["session"] != session or head["seq"] < first:
            say("note", "kept", head["seq"], "of another session, or of an entry that was pruned")
        elif head["seq"] not in hashes:
            say(
                "broken",
                "truncated",
                head["seq"],
                f"a kept {name} is of an entry that is not in it",
            )
        elif hashes[head["seq"]] != head["hash"]:
            say(
                "broken",
                "kept",
                head["seq"],
                f"a kept {name} has another hash: the record was rewritten",
            )
    return findings


def main(argv):
    kept, machine, files = [], None, []
    words = iter(argv)
    for word in words:
        if word == "--kept":
            with open(next(words), "rb") as file:
                kept = list(file)
        elif word == "--machine":
            machine = next(words)
        else:
            files.append(word)
    if len(files) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with open(files[0], "rb") as file:
        findings = verify(list(file), kept, machine)
    for level, code, seq, why in findings:
        print(f"{level} {code}{'' if seq is None else f' at {seq}'}: {why}")
    bad = any(level == "broken" for level, *_ in findings)
    print("BROKEN" if bad else "nothing is broken")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    sys.exit(code)
