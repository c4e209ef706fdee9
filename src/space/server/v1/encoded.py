"""Sandboxes as JSON, encoded once a version: lists are asked for far more often than sandboxes change."""

from space.core.sandbox import Sandbox
from space.server.answers import dumps
from space.server.v1 import render

MAX_KEPT = 16_384  # at some 900 bytes each
MAX_BYTES = 4096  # of one: callers choose its metadata, and could fill the memory


class Encoded:
    """Keeps the bytes of each (id, version); forgets all of them when it is full."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], bytes] = {}

    def __call__(self, row: Sandbox) -> bytes:
        key = (row.id, row.version)
        found = self._kept.get(key)
        if found is None:
            found = dumps(render.sandbox(row))
            if len(found) > MAX_BYTES:
                return found
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found
