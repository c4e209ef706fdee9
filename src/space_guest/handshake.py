"""Mutual authentication: each end proves that it knows the machine's token, which never travels.

    node  → HELLO      magic, version, node's nonce
    agent → CHALLENGE  agent's nonce, HMAC(token, "agent", nonces)
    node  → PROOF      HMAC(token, "node", nonces)
    agent → WELCOME    object: version, boot_id

The labels keep a proof of one end from serving as the other's.  Frames after it carry no code of their own: the
channel is a point-to-point link of the host, and a guest that can alter it is root in that guest already.
"""

import hashlib
import hmac
import os
from struct import Struct

from space_guest.protocol import VERSION, Kind, ProtocolError, encode

MAGIC = b"SPACEagt"
NONCE = 32
_HELLO = Struct(f"!{len(MAGIC)}sH{NONCE}s")
_CHALLENGE = Struct(f"!{NONCE}s32s")


class AuthenticationFailed(ProtocolError):
    """The other end does not know the token."""


def _proof(token: str, label: bytes, node_nonce: bytes, agent_nonce: bytes) -> bytes:
    return hmac.new(token.encode(), b"space " + label + b"\0" + node_nonce + agent_nonce, hashlib.sha256).digest()


class NodeHandshake:
    """The node's half."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._nonce = os.urandom(NONCE)

    def hello(self) -> bytes:
        """Return the first frame."""
        return encode(Kind.HELLO, 0, _HELLO.pack(MAGIC, VERSION, self._nonce))

    def answer(self, challenge: bytes) -> bytes:
        """Verify the agent; return the frame that proves this end."""
        if len(challenge) != _CHALLENGE.size:
            raise ProtocolError("a challenge of the wrong size")
        agent_nonce, proof = _CHALLENGE.unpack(challenge)
        if not hmac.compare_digest(proof, _proof(self._token, b"agent", self._nonce, agent_nonce)):
            raise AuthenticationFailed("the guest agent does not know the machine's token")
        return encode(Kind.PROOF, 0, _proof(self._token, b"node", self._nonce, agent_nonce))


class AgentHandshake:
    """The agent's half."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._nonce = os.urandom(NONCE)
        self._expected: bytes | None = None

    def challenge(self, hello: bytes) -> bytes:
        """Return the frame that answers `HELLO`."""
        if len(hello) != _HELLO.size or self._expected is not None:
            raise ProtocolError("not a greeting")
        magic, version, node_nonce = _HELLO.unpack(hello)
        if magic != MAGIC:
            raise ProtocolError("not a greeting")
        if version != VERSION:
            raise ProtocolError(f"the node speaks version {version}, this agent {VERSION}")
        self._expected = _proof(self._token, b"node", node_nonce, self._nonce)
        return encode(Kind.CHALLENGE, 0, self._nonce, _proof(self._token, b"agent", node_nonce, self._nonce))

    def verify(self, proof: bytes) -> None:
        """Raise `AuthenticationFailed` unless the node proved that it knows the token."""
        if self._expected is None or not hmac.compare_digest(proof, self._expected):
            raise AuthenticationFailed("the node does not know the machine's token")
