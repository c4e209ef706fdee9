"""The secrets that callers present: how they look, and what is kept of them.

Each is random bits behind a prefix that says what it is, so that a leaked one can be recognised by people and by
scanners.  Only the SHA-256 is kept: with this much entropy a slow hash would protect nothing more.
"""

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime

from space.core.account import TokenKind

_PREFIXES = {TokenKind.LOGIN: "spl_", TokenKind.SERVICE: "spc_", TokenKind.E2B: "e2b_"}
_SESSION_PREFIX = "sps_"
_TOKEN = re.compile(r"(?:sp[lc]_[a-z2-7]{52}|e2b_[0-9a-f]{40})", re.ASCII)
_SESSION = re.compile(r"sps_[a-z2-7]{52}", re.ASCII)
_SHOWN = 10  # characters of a secret that are kept for people: 30 bits of 256, or 24 of 160


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSecret:
    """A session token, as its holder gets it once."""

    secret: str = field(repr=False)
    expires_at: datetime


def make_token(kind: TokenKind) -> str:
    """Make a token's secret: 256 random bits, or the 160 that E2B's shape has room for."""
    return _PREFIXES[kind] + (secrets.token_hex(20) if kind is TokenKind.E2B else _base32())


def make_session_secret() -> str:
    """Make the secret of one command session."""
    return _SESSION_PREFIX + _base32()


def make_password() -> str:
    """Make a password of 120 bits that can be read aloud and typed."""
    text = base64.b32encode(secrets.token_bytes(15)).decode().lower()
    return "-".join(text[start : start + 6] for start in range(0, 24, 6))


def is_token(text: str) -> bool:
    """Whether `text` has the form of a token; cheap, and bounds what is hashed."""
    return _TOKEN.fullmatch(text) is not None


def is_session_secret(text: str) -> bool:
    """Whether `text` has the form of a session token."""
    return _SESSION.fullmatch(text) is not None


def digest(secret: str) -> bytes:
    """Return what is stored and looked up.

    A look-up by digest tells an attacker nothing by its time: whoever could choose the digest's bits could as well
    choose the secret.
    """
    return hashlib.sha256(secret.encode()).digest()


def shown_prefix(secret: str) -> str:
    """Return the first characters, by which people tell tokens apart."""
    return secret[:_SHOWN]


def _base32() -> str:
    return base64.b32encode(secrets.token_bytes(32)).decode().lower().rstrip("=")
