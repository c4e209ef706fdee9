"""Seals secrets that are kept in the store, with a key that is kept beside it.

Whoever reads the database alone, a backup of it for example, learns none of these.
"""

import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from space.core.errors import Unavailable

_KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = b"\x01"


class KeyFile:
    """`core.ports.Sealer` with AES-256-GCM and a key of its own in a file (0600), which is made on first use."""

    def __init__(self, path: Path) -> None:
        """Read or make the key.  Losing the file loses every secret that was sealed with it.

        Raises:
            Unavailable: it cannot be read or made, or is not a key.
        """
        try:
            if not path.exists():
                _make(path)
            if path.stat().st_mode & 0o077:
                raise Unavailable(f"{path} can be read by others; chmod 600 it, and know that its secrets may be out")
            key = path.read_bytes()
        except OSError as error:
            raise Unavailable(f"cannot use the key file {path}: {error.strerror}") from error
        if len(key) != _KEY_BYTES:
            raise Unavailable(f"{path} is no key of {_KEY_BYTES} bytes; restore it from a backup")
        self._cipher = AESGCM(key)

    def seal(self, secret: bytes, *, context: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret, context.encode())

    def open(self, sealed: bytes, *, context: str) -> bytes:
        head = len(_VERSION) + _NONCE_BYTES
        try:
            if sealed[: len(_VERSION)] != _VERSION or len(sealed) < head + 16:
                raise InvalidTag
            return self._cipher.decrypt(sealed[len(_VERSION) : head], sealed[head:], context.encode())
        except InvalidTag:
            raise Unavailable(
                f"the key of this installation does not open the secret of {context}; was seal.key replaced?"
            ) from None


def _make(path: Path) -> None:
    """Write a new key that appears whole and lasts; if another process is quicker, its key counts."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_bytes(_KEY_BYTES))
        os.fsync(fd)
        path.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        os.close(fd)
        temporary.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
