"""Ids: a three-letter prefix and the 128 bits of a UUIDv7 in 26 lower-case base32 characters.

The alphabet is base32hex (RFC 4648 §7, `0-9a-v`): it keeps the order of the bytes, so ids sort by the
millisecond in which they were made.  Every id of a kind has one fixed length and fits a host name.
"""

from typing import NewType

SandboxId = NewType("SandboxId", str)
OperationId = NewType("OperationId", str)
SessionId = NewType("SessionId", str)
ProcessId = NewType("ProcessId", str)
TemplateId = NewType("TemplateId", str)
TokenId = NewType("TokenId", str)
UserId = NewType("UserId", str)
ProjectId = NewType("ProjectId", str)
NodeId = NewType("NodeId", str)
EventId = NewType("EventId", str)
SnapshotId = NewType("SnapshotId", str)
PooledId = NewType("PooledId", str)  #: `mch…`: a machine that was started before it had a sandbox

PREFIXES = ("sbx", "ops", "ses", "prc", "tpl", "snp", "crd", "tok", "usr", "prj", "nod", "mch", "evt")
ALPHABET = "0123456789abcdefghijklmnopqrstuv"
LENGTH = 3 + 26


def make_id(prefix: str, *, unix_ms: int, randomness: bytes) -> str:
    """Make an id from a time (milliseconds since 1970) and ten random bytes, as RFC 9562 §5.7 lays them out."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    if len(randomness) != 10:
        raise ValueError("an id needs ten random bytes")
    random = int.from_bytes(randomness, "big")
    value = (
        (unix_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    )
    value <<= 2  # 26 characters carry 130 bits; the two spare bits are zero
    return prefix + "".join(ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` has the exact form of an id of this kind; says nothing about its existence."""
    return (
        len(text) == LENGTH
        and text.startswith(prefix)
        and all(character in ALPHABET for character in text[3:])
        and text[-1] in "048cgkos"  # the two spare bits are zero, so each id has one spelling
    )
