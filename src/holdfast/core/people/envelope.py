"""An envelope: the rights of a key, as a chain of signed links that only ever narrow.

    link     = body, signature
    body     = canonical JSON of {v, issuer, holder, rights, scope, nonce}, and `parent` in every
               link but the first
    chain    = 1 to 8 links
    text     = "hfe1" { "." base64url(body) "." base64url(signature) }

A chain is valid if and only if
 1. each body is the canonical spelling of exactly these fields, with known rights and limits, and
    not too long;
 2. the issuer of the first link is a root that the reader trusts (the machine's own key), and the
    first link names no parent;
 3. each later link is issued by the holder of the previous link, which has the right `grant`, and
    names that link as its parent;
 4. each later link has no right that the previous link lacks, and keeps or tightens every limit of
    its scope;
 5. each signature is the issuer's, over the body as it was sent.
So the last link says what the chain allows, because every earlier link allows more. The chain is
bound to the key of its holder; the text alone gives no rights.

A valid chain does not yet allow an act. `judge` also checks the key, the right, the session, the
time, and whether a link or key of the chain was revoked. Validity never changes and costs signature
checks, so it is established once (`verify`). The other checks are made at every act.

A link is identified by the SHA-256 of its body (browsers have no BLAKE2). The signature is not
included, so that a second spelling cannot escape a revocation. `parent` ties a link to one chain.
Without `parent`, a link would survive under any other envelope of the issuer after the original
envelope is revoked. Unknown fields and rights are refused, never skipped, because an unknown field
may be a limit.

Rejected: bearer tokens (an intercepted text would be authority), and rules in a policy language
(whether a rule narrows another could not be decided).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from holdfast.core.people import scope as scopes
from holdfast.core.people.scope import Command as Command
from holdfast.core.people.scope import Denied as Denied
from holdfast.core.people.scope import Facts as Facts
from holdfast.core.people.scope import Malformed as Malformed
from holdfast.core.people.scope import Scope as Scope
from holdfast.model import base64url, canonical, rights, signing
from holdfast.model.errors import NotAllowed, Usage

DOMAIN: Final = "envelope/1"
VERSION: Final = 1
PREFIX: Final = "hfe1"
LINKS_MAX: Final = 8
"""A person, a team's agent, its subagents; longer chains are a mistake or an attack."""
LINK_BYTES: Final = 4096  # every right and 32 long commands fit
NONCE_BYTES: Final = 16
TEXT_CHARS: Final = len(PREFIX) + LINKS_MAX * (
    2 + -(-LINK_BYTES * 4 // 3) + -(-signing.SIGNATURE_BYTES * 4 // 3)
)
# Observing is not an act, and stopping is never refused because of a rate.
UNRATED: Final = frozenset(("observe", "log", "halt", "turn.seize"))
_FIELDS: Final = frozenset(("v", "issuer", "holder", "rights", "scope", "nonce"))


class Link(NamedTuple):
    """A link as it is transferred and stored: the signed body and the signature."""

    body: bytes
    signature: bytes


Chain = tuple[Link, ...]


class Terms(NamedTuple):
    """The content of a link, before any check."""

    id: bytes
    parent: bytes | None
    issuer: bytes
    holder: bytes
    rights: frozenset[str]
    scope: Scope
    nonce: bytes


class Verified(NamedTuple):
    """A valid chain: each link is signed by the holder of the link before, and narrows it."""

    links: tuple[Terms, ...]

    @property
    def last(self) -> Terms:
        return self.links[-1]

    @property
    def keys(self) -> list[bytes]:
        """All keys of the chain, the root first."""
        return [self.links[0].issuer, *(link.holder for link in self.links)]


class Revoked(NamedTuple):
    links: Collection[bytes] = frozenset()
    keys: Collection[bytes] = frozenset()


class Allowed(NamedTuple):
    """The act is allowed within this time unless revoked; `rates` are (link, count, seconds)."""

    since: int
    until: int | None
    rates: tuple[tuple[bytes, int, int], ...] = ()


# ------------------------------------------------------------ one link


def link_id(body: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(body).digest()


def read(body: bytes) -> Terms:
    """Parse the body of a link; Malformed if it is not exactly a link."""
    if len(body) > LINK_BYTES:
        raise Malformed(f"a link is longer than {LINK_BYTES} bytes", "too_long")
    try:
        value = canonical.decode(body)
    except canonical.NotCanonical as e:
        raise Malformed(str(e)) from e
    if type(value) is not dict or value.keys() - {"parent"} != _FIELDS:
        raise Malformed("a link has other fields than a link has")
    if type(value["v"]) is not int or value["v"] != VERSION:
        raise Malformed("a link is of a version that is not known here")
    return Terms(
        link_id(body),
        _raw(value["parent"], 32, "the parent") if "parent" in value else None,
        scopes.read_key(value["issuer"]),
        scopes.read_key(value["holder"]),
        _rights(value["rights"], first="parent" not in value),
        scopes.read(value["scope"]),
        _raw(value["nonce"], NONCE_BYTES, "the nonce"),
    )


def _decode(value: object) -> bytes:
    try:
        return base64url.decode(value)
    except ValueError as e:
        raise Malformed(str(e)) from e


def _rights(value: object, first: bool) -> frozenset[str]:
    """The rights of a link. `first`: the machine's own link, which has rights of later releases."""
    if type(value) is not list or not value or not all(type(right) is str for right in value):
        raise Malformed("the rights of a link are not a list of names")
    if unknown := [right for right in value if right not in rights.RIGHTS]:
        raise Malformed(f"a link has the unknown right {unknown[0][:40]!a}")
    if value != sorted(set(value)):
        raise Malformed("the rights of a link are not sorted, or not unique")
    found = frozenset(value)
    return found | rights.LATER if first and found >= rights.ADMIN - rights.LATER else found


def _raw(value: object, size: int, what: str) -> bytes:
    data = _decode(value)
    if len(data) != size:
        raise Malformed(f"{what} of a link does not have {size} bytes")
    return data


# ------------------------------------------------------------ chains


def verify(
    chain: Sequence[Link], roots: Collection[bytes], seen: set[Link] | None = None
) -> Verified:
    """Return the content of a chain that is valid and begins at one of `roots`.

    Malformed names the violated rule. `seen` caches links with a good signature, and gets those of
    this chain, for callers that read many chains with a common beginning.
    """
    if not 0 < len(chain) <= LINKS_MAX:
        raise Malformed(
            f"an envelope has 1 to {LINKS_MAX} links, not {len(chain)}",
            "too_long" if chain else "malformed",
        )
    links = tuple(read(link.body) for link in chain)
    if links[0].issuer not in roots:
        raise Malformed("the envelope does not begin at a key that is trusted here", "root")
    if links[0].parent is not None:
        raise Malformed("the envelope begins in the middle of another", "broken")
    for above, below in zip(links, links[1:], strict=False):
        _tied(above, below)
    for terms, link in zip(links, chain, strict=True):
        if seen is not None and link in seen:
            continue
        if not signing.verify(terms.issuer, DOMAIN, link.body, link.signature):
            raise Malformed(
                "a link is not signed by the one who is said to have issued it", "signature"
            )
        if seen is not None:
            seen.add(link)
    return Verified(links)


def _tied(above: Terms, below: Terms) -> None:
    if below.issuer != above.holder or below.parent != above.id:
        raise Malformed("a link does not continue the one before it", "broken")
    if "grant" not in above.rights:
        raise Malformed("a link was handed on by somebody without the right `grant`", "no_grant")
    if more := below.rights - above.rights:
        raise Malformed(f"a link adds the right `{min(more)}`", "widens")
    if wider := scopes.widening(above.scope, below.scope):
        raise Malformed(f"a link {wider}", "widens")


def judge(
    chain: Verified,
    holder: bytes,
    right: str,
    facts: Facts,
    now: float,
    revoked: Revoked = Revoked(),
) -> Allowed | Denied:
    """Decide whether a valid chain allows this key this right for this act, now."""
    last = chain.last
    if last.holder != holder:
        return Denied("holder", "the envelope is for another key")
    for link in chain.links:
        if link.id in revoked.links:
            return Denied(
                "revoked",
                "the envelope was revoked"
                if link is last
                else "what the envelope comes from was revoked",
            )
        if link.issuer in revoked.keys:
            return Denied("revoked", "a key that the envelope comes from was revoked")
    if holder in revoked.keys:
        return Denied("revoked", "the key was revoked")
    if right not in last.rights:
        return Denied("right", f"the envelope has no right `{right}`")
    if denied := scopes.outside(last.scope, right, facts, now):
        return denied
    return Allowed(
        last.scope.not_before or 0,
        last.scope.expires,
        ()
        if right in UNRATED
        else tuple(
            (link.id, *link.scope.rate) for link in chain.links if link.scope.rate is not None
        ),
    )


def delegate(
    private: bytes,
    chain: Sequence[Link],
    holder: bytes,
    wanted: Iterable[str],
    scope: Scope,
    nonce: bytes,
) -> Chain:
    """Return the chain with another link that gives `holder` these rights within this scope.

    Only the holder of the chain is needed. The scope inherits the limits that it leaves out. An
    empty chain gives a first link, which counts only where this key is a root.
    """
    issuer = signing.public(private)
    try:
        above = verify(chain, [read(chain[0].body).issuer]).last if chain else None
    except Malformed as e:
        raise Usage(f"that is no envelope: {e}", "use the text as it was handed over") from e
    if above is not None:
        scope = scopes.inherit(above.scope, scope)
    fields: dict[str, object] = {
        "v": VERSION,
        "issuer": signing.show(issuer),
        "holder": signing.show(holder),
        "rights": sorted(set(wanted)),
        "scope": scope.show(),
        "nonce": base64url.encode(nonce),
        **({"parent": base64url.encode(above.id)} if above else {}),
    }
    body = canonical.encode(fields)
    try:
        below = read(body)
    except Malformed as e:
        raise Usage(f"that is no envelope: {e}") from e
    if above is not None:
        if above.holder != issuer:
            raise NotAllowed(
                "this envelope belongs to another key, and only its holder can hand it on",
                "use the key that the envelope was given to",
            )
        try:
            _tied(above, below)
        except Malformed as e:
            raise NotAllowed(
                f"not handed on: {e}",
                "hand on only rights of the envelope; ask its issuer for more",
            ) from e
        if len(chain) >= LINKS_MAX:
            raise NotAllowed(
                f"an envelope is handed on at most {LINKS_MAX - 1} times",
                "ask an operator nearer to its beginning",
            )
    return (*chain, Link(body, signing.sign(private, DOMAIN, body)))


# ------------------------------------------------------------ text


def delegate_to(
    private: bytes,
    held: Iterable[str],
    keys: Sequence[bytes],
    wanted: Iterable[str],
    scope: Scope,
    nonce: bytes,
) -> list[str]:
    """The texts of envelopes that hand rights on to each of these keys.

    The first of the caller's own envelopes (`held`) that allows this is handed on.
    """
    why: NotAllowed | None = None
    for text in held:
        try:
            chain = decode(text)
            return [encode(delegate(private, chain, key, wanted, scope, nonce)) for key in keys]
        except NotAllowed as e:
            why = e
    raise why or NotAllowed("you have no rights to delegate", "ask for them with `grant`")


def encode(chain: Sequence[Link]) -> str:
    """Return the chain as one line of text."""
    return ".".join([PREFIX, *(base64url.encode(part) for link in chain for part in link)])


def decode(text: str) -> Chain:
    """Parse the text of `encode`; Malformed for any other text. Bounded work, no verification."""
    if len(text) > TEXT_CHARS:
        raise Malformed(f"an envelope is longer than {TEXT_CHARS} characters", "too_long")
    prefix, *parts = text.split(".", 2 * LINKS_MAX + 1)
    if prefix != PREFIX:
        raise Malformed(f"an envelope begins with {PREFIX}.")
    if not parts or len(parts) % 2 or len(parts) > 2 * LINKS_MAX:
        raise Malformed(
            f"an envelope has 1 to {LINKS_MAX} links of two parts each",
            "too_long" if len(parts) > 2 * LINKS_MAX else "malformed",
        )
    found = [_decode(part) for part in parts]
    links = tuple(
        Link(body, signature) for body, signature in zip(found[::2], found[1::2], strict=True)
    )
    for link in links:
        read(link.body)
        if len(link.signature) != signing.SIGNATURE_BYTES:
            raise Malformed(f"a signature does not have {signing.SIGNATURE_BYTES} bytes")
    return links
