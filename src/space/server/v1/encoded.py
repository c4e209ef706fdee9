"""Sandboxes as JSON, encoded once a version: lists are asked for far more often than sandboxes change."""

from space.core.sandbox import Sandbox
from space.server.answers import dumps
from space.server.v1 import render

MAX_KEPT = 16_384  # at some 900 bytes each


class Encoded:
    """Keeps the bytes of each (id, version); forgets all of them when it is full."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], bytes] = {}

    def __call__(self, row: Sandbox) -> bytes:
        key = (row.id, row.version)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[key] = dumps(render.sandbox(row))
        return found
