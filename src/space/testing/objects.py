"""An object store in memory that fails when a test asks it to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from space.core.errors import NotFound, PayloadTooLarge, Unavailable
from space.core.objects import MAX_BYTES
from space.core.ports import Clock, ObjectInfo


class Fault(StrEnum):
    """What goes wrong with a call."""

    FAIL = "fail"  #: nothing happens, and the caller is told
    LOSE_ANSWER = "lose_answer"  #: it happens, and the caller is told that it failed
    TRUNCATE = "truncate"  #: half of the bytes arrive, without an error
    CORRUPT = "corrupt"  #: one bit is turned, without an error
    HANG = "hang"  #: it waits until `release`


@dataclass
class FakeObjects:
    """`core.ports.ObjectStore`.  `calls` tells what was asked, `faults` decides what goes wrong."""

    clock: Clock | None = None  #: for `modified_at`; without one it is the real time
    objects: dict[str, bytes] = field(default_factory=dict)
    modified: dict[str, datetime] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)  #: method and key
    fault: Callable[[str, str], Fault | None] = lambda method, key: None
    busiest: int = 0  #: most calls that were under way at once
    _busy: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, key: str, *, most: int = MAX_BYTES) -> bytes:
        fault = await self._call("get", key)
        if key not in self.objects:
            raise NotFound(f"there is no object {key}")
        if len(self.objects[key]) > most:
            raise PayloadTooLarge(f"the object {key} is too large", limit=most)
        return _damaged(self.objects[key], fault)

    async def put(self, key: str, data: bytes) -> None:
        fault = await self._call("put", key)
        self.objects[key] = _damaged(data, fault)
        self.modified[key] = self.clock.now() if self.clock is not None else datetime.now(UTC)
        _answer(fault)

    async def head(self, key: str) -> ObjectInfo | None:
        await self._call("head", key)
        return self._info(key) if key in self.objects else None

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        await self._call("list", prefix)
        for key in [key for key in self.objects if key.startswith(prefix)]:
            yield self._info(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            fault = await self._call("delete", key)
            self.objects.pop(key, None)
            self.modified.pop(key, None)
            _answer(fault)

    # What tests do with it

    def fail(self, method: str, *, at: int = 1, times: int | None = None, fault: Fault = Fault.FAIL) -> None:
        """Let a method's call number `at` from now, and `times` - 1 after it (None: all), go wrong."""
        count = 0

        def decide(called: str, key: str) -> Fault | None:
            nonlocal count
            if called != method:
                return None
            count += 1
            return fault if count >= at and (times is None or count < at + times) else None

        self.fault = decide

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        self.fault = lambda method, key: None
        self.release()

    def release(self) -> None:
        """Let calls that hang go on."""
        self._released.set()
        self._released = asyncio.Event()

    def count(self, method: str) -> int:
        return sum(called == method for called, _ in self.calls)

    def _info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key=key, size=len(self.objects[key]), modified_at=self.modified[key])

    async def _call(self, method: str, key: str) -> Fault | None:
        self.calls.append((method, key))
        fault = self.fault(method, key)
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            await asyncio.sleep(0)
            if fault is Fault.HANG:
                await self._released.wait()
        finally:
            self._busy -= 1
        if fault is Fault.FAIL:
            raise Unavailable("the object store does not answer; try again later")
        return fault


def _damaged(data: bytes, fault: Fault | None) -> bytes:
    if fault is Fault.TRUNCATE:
        return data[: len(data) // 2]
    if fault is Fault.CORRUPT and data:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data


def _answer(fault: Fault | None) -> None:
    if fault is Fault.LOSE_ANSWER:
        raise Unavailable("the object store does not answer; try again later")
