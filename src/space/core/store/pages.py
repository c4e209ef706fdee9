"""A part of a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Part of a list; `next_cursor` is opaque, and None at the end."""

    items: Sequence[T]
    next_cursor: str | None
