"""One call from nothing to output: a sandbox, files in, a command, files out, and nothing left.

The sandbox is deleted on every way out.  For the ways out that no code sees (`kill -9`), it is created with a
lifetime that the command cannot outlive by much, and the reaper deletes it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from space.control.bounds import check_command, check_path
from space.control.cleanups import Cleanups
from space.control.commands import Commands
from space.control.exec_result import ExecResult
from space.control.failure import failure_of
from space.control.files import Files
from space.control.operations import Operations
from space.control.output import check_limit
from space.control.sandboxes import Sandboxes
from space.core.account import Call, Principal
from space.core.command import CommandSpec
from space.core.errors import InvalidRequest, PayloadTooLarge, SpaceError
from space.core.ids import SandboxId
from space.core.lifecycle import State
from space.core.operation import Operation, Status
from space.core.sandbox import AutoLifecycle, OnIdle, Sandbox, SandboxSpec

MAX_FILES = 100
MAX_FILE_BYTES = 16 << 20
MAX_FILES_OUT_BYTES = 16 << 20  # of all files in one answer: it is held in memory, and again as base64
DEFAULT_SECONDS = 3600  # a command without a timeout: no call is open for longer
_SPARE_SECONDS = 180  # for the boot, the files and the deletion
_ONE_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIn:
    """A file that is written before the command starts."""

    path: str
    data: bytes = field(repr=False)
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOut:
    """A file that was read after the command ended, or why it could not be."""

    path: str
    data: bytes | None = field(repr=False)
    error: SpaceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """All of one call."""

    sandbox: SandboxSpec
    command: CommandSpec
    files_in: Sequence[FileIn] = ()
    files_out: Sequence[str] = ()
    max_output_bytes: int = 1 << 20
    max_file_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How the command ended, and the files that were asked for.  The sandbox is being deleted."""

    sandbox_id: SandboxId
    result: ExecResult
    files: Sequence[FileOut]


class Runs:
    """Makes sandboxes for single commands."""

    def __init__(self, sandboxes: Sandboxes, operations: Operations, commands: Commands, files: Files) -> None:
        self._sandboxes = sandboxes
        self._operations = operations
        self._commands = commands
        self._files = files
        self._cleanups = Cleanups()

    async def run(self, call: Call, request: RunRequest) -> RunResult:
        """Do it all; raises what each part raises.  Cancelling kills the command and deletes the sandbox.

        A command that fails is a result, not an error; a file that cannot be read is an error in its place.
        """
        _check(request)
        # The key of this call must lead to the whole answer, not to the sandbox or the process that it makes.
        inner = replace(call, idempotency=None)
        sandbox, operation = await self._create(inner, _short_lived(request))
        try:
            await self._wait_until_running(call.principal, sandbox.id, operation.id)
            for file in request.files_in:
                await self._files.write(
                    inner, sandbox.id, file.path, _once(file.data), mode=file.mode, user=request.command.user
                )
            result = await self._commands.exec(
                inner, sandbox.id, _limited(request.command), max_output_bytes=request.max_output_bytes
            )
            files = await self._read_all(call.principal, sandbox.id, request)
        finally:
            await self._cleanups.finish("delete of a sandbox made for one command", self._delete(inner, sandbox.id))
        return RunResult(sandbox_id=sandbox.id, result=result, files=files)

    async def aclose(self) -> None:
        """Finish the deletions that are owed."""
        await self._cleanups.aclose()

    async def _create(self, call: Call, spec: SandboxSpec) -> tuple[Sandbox, Operation]:
        """Create; if the caller leaves before it is known what was created, find out and delete it."""
        creating = asyncio.create_task(self._sandboxes.create(call, spec))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            await self._cleanups.finish("delete of a sandbox that nobody waited for", self._delete_made(call, creating))
            raise

    async def _delete_made(self, call: Call, creating: "asyncio.Task[tuple[Sandbox, Operation]]") -> None:
        sandbox, _ = await creating
        await self._delete(call, sandbox.id)

    async def _wait_until_running(self, who: Principal, sandbox_id: SandboxId, operation_id: str) -> None:
        operation = await self._operations.wait(who, operation_id, seconds=_ONE_WAIT_SECONDS)
        while not operation.status.is_final:
            operation = await self._operations.wait(who, operation_id, seconds=_ONE_WAIT_SECONDS)
        if operation.status is not Status.SUCCEEDED:
            raise failure_of(operation)

    async def _read_all(self, who: Principal, sandbox_id: SandboxId, request: RunRequest) -> list[FileOut]:
        left = MAX_FILES_OUT_BYTES
        files: list[FileOut] = []
        for path in request.files_out:
            file = await self._read(who, sandbox_id, path, min(request.max_file_bytes, left))
            left -= len(file.data or b"")
            files.append(file)
        return files

    async def _read(self, who: Principal, sandbox_id: SandboxId, path: str, limit: int) -> FileOut:
        data = bytearray()
        try:
            async with self._files.read(who, sandbox_id, path, length=limit + 1) as (_, chunks):
                async for chunk in chunks:
                    data += chunk
                    if len(data) > limit:
                        raise PayloadTooLarge(
                            f"{path} has more than the {limit} bytes that this answer has room for; "
                            "keep the sandbox and read it as a stream",
                            field="files_out",
                            limit=limit,
                        )
        except SpaceError as error:
            return FileOut(path=path, data=None, error=error)
        return FileOut(path=path, data=bytes(data))

    async def _delete(self, call: Call, sandbox_id: SandboxId) -> None:
        """Admit the deletion; the worker carries it out, and the reaper admits it if this fails."""
        sandbox = await self._sandboxes.get(call.principal, sandbox_id)
        if sandbox.state is not State.DELETED:
            await self._sandboxes.delete(call, sandbox_id)


def _check(request: RunRequest) -> None:
    check_limit(request.max_output_bytes)
    if not 0 <= request.max_file_bytes <= MAX_FILE_BYTES:
        raise InvalidRequest(f"max_file_bytes is 0 to {MAX_FILE_BYTES}", field="max_file_bytes", limit=MAX_FILE_BYTES)
    for name, files in (("files_in", request.files_in), ("files_out", request.files_out)):
        if len(files) > MAX_FILES:
            raise PayloadTooLarge(f"{name} has at most {MAX_FILES} entries", field=name, limit=MAX_FILES)
    check_command(request.command)
    for file in request.files_in:
        check_path(file.path, field="files_in")
    for path in request.files_out:
        check_path(path, field="files_out")
    if request.command.start_now:
        raise InvalidRequest("a run starts its command at once; leave out start", field="start")


def _limited(command: CommandSpec) -> CommandSpec:
    """Give a command without a timeout the longest one that the sandbox will live for."""
    return replace(command, timeout_seconds=command.timeout_seconds or DEFAULT_SECONDS)


def _short_lived(request: RunRequest) -> SandboxSpec:
    """Let the reaper delete what this process cannot."""
    seconds = round(_limited(request.command).timeout_seconds) + _SPARE_SECONDS
    wanted = request.sandbox.auto_lifecycle.max_lifetime_seconds
    lifetime = AutoLifecycle(
        on_idle=OnIdle.NONE, max_lifetime_seconds=seconds if wanted is None else min(seconds, wanted)
    )
    return replace(request.sandbox, auto_lifecycle=lifetime)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
    await asyncio.sleep(0)
