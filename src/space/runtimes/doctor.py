"""Asking every runtime what it can do here."""

import asyncio
from collections.abc import Sequence

from space.core.node import Capabilities
from space.core.ports import Runtime

PROBE_SECONDS = 1.0


async def probe_all(runtimes: Sequence[Runtime]) -> list[Capabilities]:
    """Probe them all at once, in the given order; one that takes more than a second counts as not available."""
    return list(await asyncio.gather(*(_probe(runtime) for runtime in runtimes)))


async def _probe(runtime: Runtime) -> Capabilities:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await runtime.probe()
    except TimeoutError:
        reason = f"probing took more than {PROBE_SECONDS:.0f} s; is the machine overloaded?"
    except Exception as error:
        reason = f"probing failed: {error}"
    return Capabilities(runtime=runtime.name, is_available=False, reasons={"available": reason})
