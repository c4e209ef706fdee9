"""Waiting for a descriptor without a transport."""

import asyncio


async def readable(descriptor: int) -> None:
    """Return once reading would not block; one waiter a descriptor."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Return once writing would not block; one waiter a descriptor."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def settle(ready: "asyncio.Future[None]") -> None:
    """Let its waiter go on, unless somebody has already."""
    if not ready.done():
        ready.set_result(None)
