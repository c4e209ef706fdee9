"""Cursors of lists that are in the order of ids: the cursor is the last id that the caller has."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from space.core.errors import InvalidRequest
from space.core.ids import is_id
from space.core.store import Page


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


def after_id(cursor: str | None, prefix: str) -> str:
    """Return the id after which the page begins."""
    if cursor is None:
        return ""
    if not is_id(cursor, prefix):
        raise InvalidRequest("this cursor was not given out by this list", field="cursor")
    return cursor


def page_of(items: Sequence[T], limit: int) -> Page[T]:
    """Make a page from up to `limit` + 1 rows; the one too many tells that there is more."""
    if len(items) <= limit:
        return Page(items=items, next_cursor=None)
    return Page(items=items[:limit], next_cursor=items[limit - 1].id)
