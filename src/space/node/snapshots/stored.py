"""How a chunk and a manifest look in the object store: compressed, then encrypted with the project's key.

An object is a version byte, a nonce and AES-256-GCM of a zstd frame.  Its kind and name are authenticated with it, so
the store cannot pass one off as another.  The name tells of the content, which is checked as well, but only to whoever
has the key: it shows neither what is in an object nor that two projects have the same.
"""

import hmac
import secrets
import threading

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHUNK, MANIFEST = "chunk", "manifest"
MOST_MANIFEST = 256 << 20  #: bytes of a manifest, decompressed
_LEVEL = 1
_VERSION = b"\x01"
_NONCE = 12
_HEAD = len(_VERSION) + _NONCE
_thread = threading.local()


class Damaged(ValueError):
    """An object is not what was stored under its name."""


def name_of_content(data: bytes | bytearray, *, key: bytes) -> bytes:
    """Return the name of an object: HMAC-SHA256 of its content with a key that is derived from the project's."""
    return hmac.digest(hmac.digest(key, b"names of objects", "sha256"), data, "sha256")


def seal(data: bytes, *, kind: str, name: bytes, key: bytes) -> bytes:
    """Return an object; `name` is that of its content.  The same data gives another object each time."""
    nonce = secrets.token_bytes(_NONCE)
    return _VERSION + nonce + AESGCM(key).encrypt(nonce, _compressor().compress(data), kind.encode() + name)


def unseal(stored: bytes, *, kind: str, name: bytes, key: bytes, size: int | None = None) -> bytes:
    """Return the content, of exactly `size` bytes where that is known.

    Raises:
        Damaged: it was cut, changed, sealed with another key or under another name, or is larger than it may be.
    """
    if stored[: len(_VERSION)] != _VERSION or len(stored) < _HEAD + 16:
        raise Damaged("it was cut, or is no object of ours")
    try:
        frame = AESGCM(key).decrypt(stored[len(_VERSION) : _HEAD], stored[_HEAD:], kind.encode() + name)
    except InvalidTag:
        raise Damaged("it was changed, or belongs to another project") from None
    try:
        length = zstandard.frame_content_size(frame)  # read first, so that little cannot become much
        if not 0 <= length <= MOST_MANIFEST or (size is not None and length != size):
            raise Damaged("it has another size than it should")
        data = _decompressor().decompress(frame, max_output_size=length)
    except zstandard.ZstdError:
        raise Damaged("it does not decompress") from None
    if name_of_content(data, key=key) != name:
        raise Damaged("its content has another name")
    return data


def most_stored(size: int) -> int:
    """Return how many bytes an object has at most for content of this size; noise grows a little by compressing."""
    return _HEAD + 16 + size + (size >> 7) + 1024


def _compressor() -> zstandard.ZstdCompressor:
    """Return this thread's: making one costs as much as compressing a small chunk."""
    if not hasattr(_thread, "compressor"):
        _thread.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    compressor: zstandard.ZstdCompressor = _thread.compressor
    return compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_thread, "decompressor"):
        _thread.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _thread.decompressor
    return decompressor
