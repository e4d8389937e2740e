"""Tokens of people and keys of applications: random, shown once, stored as hashes."""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "pddpo_"
SHOWN = len(PREFIX) + 6
"""Characters of a token that are kept readable, to recognise it by."""


def new_token() -> str:
    """256 random bits; nobody can guess one, so a plain hash is enough to store it by."""
    return PREFIX + secrets.token_urlsafe(32)


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
