# Generated from ../_async/sandbox.py by scripts/generate_sync_sdk.py: change it there.
"""A sandbox, as its user holds it."""

import builtins
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

import httpx

from space.sdk import http
from space.sdk._sync.client import Client
from space.sdk._sync.command import Command
from space.sdk._sync.files import Files
from space.sdk._sync.lifecycle import Lifecycle
from space.sdk._sync.operations import wait_operation
from space.sdk.bodies import Argv, command_body, without_none
from space.sdk.errors import NotFoundError
from space.sdk.model import ExecResult, Operation, ProcessInfo, SandboxInfo, TimelineEvent

LARGEST_PAGE = 1000  #: entries that the server gives at once


class Sandbox(Lifecycle):
    """A sandbox.  As a context manager it deletes itself at the end.

    Without `client`, `create` and `connect` make one from the environment and close it with the sandbox.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, owns_client: bool = False) -> None:
        self._client = client
        self._transport = client.transport
        self._owns_client = owns_client
        self.info = info  #: as of the last answer; see `refresh`
        self.files = Files(self._transport, info.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.state}>"

    @property
    def id(self) -> str:
        return self.info.id

    @classmethod
    def create(
        cls,
        template: str = "base",
        *,
        runtime: str | None = None,
        vcpus: int | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        auto_lifecycle: Mapping[str, Any] | None = None,
        network_policy: Mapping[str, Any] | None = None,
        egress_profile: str | None = None,
        wait: bool = True,
        timeout: float | None = 120.0,
        client: Client | None = None,
    ) -> "Sandbox":
        """Create a sandbox and wait until it runs, at most `timeout` seconds.

        `template` may be the id of a snapshot: the sandbox goes on where that was taken, with its processes.
        Whatever breaks in between, one call makes one sandbox.  If it does not come up, the error says why and it is
        left as `failed`.  With `wait=False` it is returned while it is still being created.
        """
        own = client or Client()
        try:
            info = own.create_sandbox(
                template,
                runtime=runtime,
                vcpus=vcpus,
                memory_mib=memory_mib,
                disk_mib=disk_mib,
                env=env,
                metadata=metadata,
                auto_lifecycle=auto_lifecycle,
                network_policy=network_policy,
                egress_profile=egress_profile,
                wait=wait,
                timeout=timeout,
            )
        except BaseException:
            if client is None:
                own.close()
            raise
        return cls(own, info, owns_client=client is None)

    @classmethod
    def connect(cls, sandbox_id: str, *, client: Client | None = None) -> "Sandbox":
        """Take up a sandbox that exists."""
        own = client or Client()
        try:
            info = own.get_sandbox(sandbox_id)
        except BaseException:
            if client is None:
                own.close()
            raise
        return cls(own, info, owns_client=client is None)

    @classmethod
    def list(
        cls,
        *,
        state: str | None = None,
        template: str | None = None,
        runtime: str | None = None,
        metadata: Mapping[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        client: Client | None = None,
    ) -> Iterator[SandboxInfo]:
        """Yield all sandboxes that match, page by page."""
        own = client or Client()
        try:
            yield from own.sandboxes(
                state=state,
                template=template,
                runtime=runtime,
                metadata=metadata,
                created_after=created_after,
                created_before=created_before,
            )
        finally:
            if client is None:
                own.close()

    def exec(
        self,
        command: Argv,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """Run a command to its end in one call.  A string is a shell line, a sequence is argv.

        `timeout` is in seconds; then the process group is killed and `reason` is `timeout`.
        """
        body = command_body(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            max_output_bytes=max_output_bytes,
            encoding="base64",
        )
        response = self._transport.request("POST", f"{self._path}/exec", json=body, timeout=http.UNHURRIED)
        return ExecResult.parse(http.answer_object(response))

    def start(
        self,
        command: Argv,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        detached: bool = False,
        patience: float = 120.0,
    ) -> Command:
        """Start a command whose output is streamed: iterate what is returned.

        It starts with the first iteration, or at once if `detached`.  `pty` is columns and rows of a terminal;
        `patience` is how long, in seconds, an iteration keeps trying to reach a server that is away.
        """
        body = command_body(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            stdin="pipe" if stdin else None,
            pty={"cols": pty[0], "rows": pty[1]} if pty else None,
            start="now" if detached else None,
        )
        response = self._transport.request("POST", f"{self._path}/commands", json=body)
        return Command.from_answer(self._transport, self.id, http.answer_object(response), patience=patience)

    def attach(self, process: ProcessInfo | str, *, patience: float = 120.0) -> Command:
        """Take up a process that was started before, by its id; iterate for its events from the very first."""
        if isinstance(process, str):
            path = f"{self._path}/processes/{http.segment(process)}"
            process = ProcessInfo.parse(http.answer_object(self._transport.request("GET", path)))
        path = f"{self._path}/sessions/{process.session_id}/token"
        session = http.answer_object(self._transport.request("POST", path))
        body = {"session": session, "process": {"id": process.id}}
        return Command.from_answer(self._transport, self.id, body, patience=patience)

    def processes(self) -> Sequence[ProcessInfo]:
        """List the processes that were started through the API, those that ended within a day included."""
        return [ProcessInfo.parse(item) for item in self._all("/processes", None)]

    def timeline(self, *, limit: int | None = None) -> Sequence[TimelineEvent]:
        """Return what happened to the sandbox, oldest first; all of it, or the first `limit` events."""
        return [TimelineEvent.parse(item) for item in self._all("/events", limit)]

    def update(
        self, *, metadata: Mapping[str, str] | None = None, auto_lifecycle: Mapping[str, Any] | None = None
    ) -> SandboxInfo:
        """Replace metadata or the automatic lifecycle."""
        body = {
            key: dict(value)
            for key, value in (("metadata", metadata), ("auto_lifecycle", auto_lifecycle))
            if value is not None
        }
        return self._updated(self._transport.request("PATCH", self._path, json=body))

    def kill(self, *, wait: bool = True, timeout: float | None = 60.0) -> None:
        """Delete the sandbox and all that runs in it; one that is gone is fine."""
        try:
            response = self._transport.request("DELETE", self._path)
        except NotFoundError:
            return
        body = http.answer_object(response)
        if wait:
            wait_operation(self._transport, Operation.parse(body.get("operation", body)), timeout=timeout)

    def close(self) -> None:
        """Close connections; the sandbox lives on."""
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        try:
            self.kill(wait=False)
        finally:
            self.close()
        return False

    def _all(self, path: str, limit: int | None) -> Sequence[Mapping[str, Any]]:
        """Return the items of all pages of a list, or the first `limit`."""
        found: builtins.list[Mapping[str, Any]] = []
        cursor: str | None = None
        while True:
            wanted = LARGEST_PAGE if limit is None else min(limit - len(found), LARGEST_PAGE)
            query = without_none({"limit": wanted, "cursor": cursor})
            body = http.answer_object(self._transport.request("GET", self._path + path, query=query))
            found += body.get("items", ())
            cursor = body.get("next_cursor")
            if cursor is None or (limit is not None and len(found) >= limit):
                return found

    def _updated(self, response: httpx.Response) -> SandboxInfo:
        body = http.answer_object(response)
        self.info = SandboxInfo.parse(body.get("sandbox", body))
        return self.info
