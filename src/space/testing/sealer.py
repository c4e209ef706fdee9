"""Sealing for tests: it keeps nothing secret, but refuses what was sealed for somebody else."""

from space.core.errors import Unavailable


class FakeSealer:
    """`core.ports.Sealer` without cryptography."""

    def seal(self, secret: bytes, *, context: str) -> bytes:
        return context.encode() + b"\0" + secret

    def open(self, sealed: bytes, *, context: str) -> bytes:
        owner, _, secret = sealed.partition(b"\0")
        if owner != context.encode():
            raise Unavailable("this was sealed for another purpose")
        return secret
