"""Deliveries as providers of webhooks sign them."""

from __future__ import annotations

import hashlib
import hmac

from holdfast.faces.http.hooks import signature

SECRET = "made by the provider"
Signed = tuple[bytes, dict[str, str]]


def github(body: bytes, id: str, secret: str = SECRET) -> Signed:
    made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return body, {"X-Hub-Signature-256": f"sha256={made}", "X-GitHub-Delivery": id}


def stripe(body: bytes, at: int) -> Signed:
    made = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return body, {"Stripe-Signature": f"t={at},v0=00,v1={made}"}


def standard(secret: str, body: bytes, id: str, at: int) -> Signed:
    headers = {"webhook-id": id, "webhook-timestamp": str(at)}
    return body, {**headers, "webhook-signature": f"v1,AAAA {signature(secret, id, at, body)}"}
