"""Who sends a request: the token it shows and the address it comes from."""

from __future__ import annotations

from fastapi import Request


def bearer_token(request: Request) -> str | None:
    """The token of `Authorization: Bearer TOKEN`; None where the request shows none in this way."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
