"""Notices as webhooks: the same deliveries as of `holdfast http hook`.

The person who starts the command names the receiver, so any address is allowed. Only plain http to
a public address is refused: the texts of acts may be secret.
"""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Final

from holdfast.core.session.waits import Wait
from holdfast.faces.http.hooks import Hook, check_url, deliver_patiently, public
from holdfast.faces.notify.following import short
from holdfast.home import private
from holdfast.model.errors import Unavailable, Usage

FILE_BYTES: Final = 4096
SECRET: Final = re.compile(r"whsec_[A-Za-z0-9+/]{4,}={0,2}")


def receiver(word: str) -> tuple[str, str]:
    """Address and secret of `URL` or `@FILE`. The file: the address, then the secret if any."""
    if not word.startswith("@"):
        return word, ""
    data = private.read(word[1:], FILE_BYTES)
    lines = (data or b"").decode("utf-8", "replace").split()
    if not lines or len(lines) > 2 or not all(map(SECRET.fullmatch, lines[1:])):
        raise Usage(
            f"{word[1:]} has no receiver",
            "the first line is its address, the second may be a secret like whsec_...",
        )
    return lines[0], lines[1] if len(lines) == 2 else ""


class Webhook:
    def __init__(self, word: str) -> None:
        url, secret = receiver(word)
        host, port, _, tls = check_url(url, private=True)
        self.name = f"webhook {host}"  # the rest of an address may be secret
        if not tls and any(map(public, self._addresses(host, port))):
            raise Usage("a receiver on the public network needs https", "like https://example.org")
        id = "n" + os.urandom(4).hex()
        self._hook, self._count = Hook(id, url, (), None, secret, private=True), 0

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            return [str(one[4][0]) for one in socket.getaddrinfo(host, port)]
        except OSError as e:
            raise Usage(f"no machine has the name {host!a}: {e.strerror}") from e

    async def send(self, wait: Wait) -> None:
        self._count += 1
        said = f"{wait.title}: {short(wait)}".removesuffix(": ")
        about = {"type": f"waiting.{wait.kind}", "text": said, "data": wait._asdict()}
        body = json.dumps(about).encode()
        why = await deliver_patiently(self._hook, f"{self._hook.id}.{self._count}", body)
        if why is not None:
            raise Unavailable(why)
