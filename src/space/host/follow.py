"""Run a long program and hand over its output line by line, as it comes.

For builders (mmdebstrap), not for machines: the program and everything that it starts live in a process-id
namespace of their own, which the kernel clears when this process dies, however it dies.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

_LINE_END = re.compile(rb"[\r\n]+")
_LONGEST_LINE = 4096
_KEPT_LINES = 20

# unshare takes the death of this process as its own (setpriv), and its end kills the namespace (--kill-child).
_CONTAINED = ("setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--pid", "--kill-child=KILL", "--mount-proc")


class ProgramFailed(RuntimeError):
    """It ended with another code than 0; `last_lines` is the end of what it said."""

    def __init__(self, program: str, code: int, last_lines: Sequence[str]) -> None:
        super().__init__(f"{program} ended with code {code}")
        self.code = code
        self.last_lines = tuple(last_lines)


async def follow(
    argv: Sequence[str],
    *,
    on_line: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    contained: bool = False,
) -> None:
    """Run `argv` to its end, calling `on_line` for each line of its output and errors.

    `contained` needs root.  Being cancelled kills it.

    Raises:
        ProgramFailed: it did not end with code 0.
        FileNotFoundError: there is no such program.
    """
    process = await asyncio.create_subprocess_exec(  # noqa: TID251 - this is host
        *(*_CONTAINED, *argv) if contained else argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(os.environ if env is None else env),
        cwd=cwd,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - it was asked for
    last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        async for line in _lines(process.stdout):
            last_lines.append(line)
            on_line(line)
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code:
        raise ProgramFailed(argv[0], code, last_lines)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while data := await stream.read(65536):
        *whole, rest = _LINE_END.split(rest + data)
        for line in whole:
            if line:
                yield line[:_LONGEST_LINE].decode(errors="replace")
        rest = rest[:_LONGEST_LINE]
    if rest:
        yield rest.decode(errors="replace")
