"""Waiting for descriptors."""

import asyncio
import os

import pytest

from space.host.readiness import readable, writable

pytestmark = pytest.mark.anyio


async def test_a_pipe_is_readable_once_something_is_in_it_and_writable_at_once() -> None:
    reading, writing = os.pipe()
    waiting = asyncio.ensure_future(readable(reading))
    await writable(writing)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    os.write(writing, b"x")
    async with asyncio.timeout(1):
        await waiting
    os.close(reading)
    os.close(writing)


async def test_a_cancelled_wait_leaves_no_reader() -> None:
    reading, writing = os.pipe()
    waiting = asyncio.ensure_future(readable(reading))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not asyncio.get_running_loop().remove_reader(reading)
    os.close(reading)
    os.close(writing)
