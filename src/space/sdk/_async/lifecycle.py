"""What changes a sandbox's state: pause, suspend, wake, fork, snapshot, recover; and waiting for a state."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from space.sdk import http
from space.sdk._async.operations import prefer
from space.sdk.bodies import without_none
from space.sdk.errors import DeadlineExceededError, FailedPreconditionError, SpaceError, error_from_envelope
from space.sdk.model import Operation, SandboxInfo, SnapshotInfo

if TYPE_CHECKING:
    from space.sdk._async.client import AsyncClient
    from space.sdk._async.sandbox import AsyncSandbox

Watch = Callable[[Operation], None]
WATCH_SECONDS = 0.25  #: between looks at a sandbox that nothing is under way for


class AsyncLifecycle:
    """The part of a sandbox that changes its state.

    Each call returns once it is done, at most after `timeout` seconds, and raises why it is not; with `wait=False` it
    returns as soon as the change is recorded.  Asking for what is so already, or under way already, is fine.
    `watch` is shown the operation about once a second meanwhile, for its step and progress.
    """

    _client: "AsyncClient"
    info: SandboxInfo

    async def pause(
        self, *, wait: bool = True, timeout: float | None = 120.0, watch: Watch | None = None
    ) -> SandboxInfo:
        """Stop its processors and keep its memory on the node; quick, but a node that dies takes it along."""
        return await self._change("pause", wait, timeout, watch)

    async def suspend(
        self, *, wait: bool = True, timeout: float | None = 120.0, watch: Watch | None = None
    ) -> SandboxInfo:
        """Save memory, processes, files and output durably, and free the machine."""
        return await self._change("suspend", wait, timeout, watch)

    async def wake(
        self, *, wait: bool = True, timeout: float | None = 120.0, watch: Watch | None = None
    ) -> SandboxInfo:
        """Go on where it was paused or suspended."""
        return await self._change("wake", wait, timeout, watch)

    async def recover(
        self, *, wait: bool = True, timeout: float | None = 120.0, watch: Watch | None = None
    ) -> SandboxInfo:
        """Bring a failed sandbox back from its last durable state; what happened since is lost."""
        return await self._change("recover", wait, timeout, watch)

    async def fork(
        self,
        count: int = 1,
        *,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        auto_lifecycle: Mapping[str, Any] | None = None,
        wait: bool = True,
        timeout: float | None = 120.0,
        watch: Watch | None = None,
    ) -> "list[AsyncSandbox | SpaceError]":
        """Make `count` children that go on from here; this sandbox stays as it is.

        Each item is a sandbox, or the error that says why there is no such child, or why it did not come up.
        """
        body = without_none(
            {
                "count": count,
                "metadata": None if metadata is None else dict(metadata),
                "env": None if env is None else dict(env),
                "auto_lifecycle": None if auto_lifecycle is None else dict(auto_lifecycle),
            }
        )
        patience = _Patience(timeout)
        answer = http.answer_object(
            await self._client.transport.request(
                "POST", f"{self._path}/fork", json=body, headers=prefer(wait, 1 if watch else timeout)
            )
        )
        if wait and watch is not None:
            await self._watched(Operation.parse(answer["operation"]), patience, watch)
        return [await self._child(child, wait, patience, watch) for child in answer.get("children", ())]

    async def snapshot(
        self,
        name: str | None = None,
        *,
        wait: bool = True,
        timeout: float | None = 120.0,
        watch: Watch | None = None,
    ) -> SnapshotInfo:
        """Save a moment that stays until it is deleted; `AsyncSandbox.create(snapshot.id)` goes on from it."""
        patience = _Patience(timeout)
        response = await self._client.transport.request(
            "POST",
            f"{self._path}/snapshots",
            json=without_none({"name": name}),
            headers=prefer(wait, 1 if watch else timeout),
        )
        body = http.answer_object(response)
        taken = SnapshotInfo.parse(body["snapshot"])
        if not wait or taken.state == "ready":
            return taken
        await self._client.wait(Operation.parse(body["operation"]), timeout=patience.left, watch=watch)
        return await self._client.snapshots.get(taken.id)

    async def extend(self, seconds: int) -> SandboxInfo:
        """Let it live for so many seconds from now on; never shortens."""
        response = await self._client.transport.request("POST", f"{self._path}/extend", json={"seconds": seconds})
        self.info = SandboxInfo.parse(http.answer_object(response))
        return self.info

    async def refresh(self) -> SandboxInfo:
        """Ask the server for the present state."""
        self.info = await self._client.get_sandbox(self.info.id)
        return self.info

    async def wait_until(self, state: str, *, timeout: float | None = 120.0) -> SandboxInfo:
        """Wait until it is `running`, `paused`, `suspended`, `failed` or `deleted`, whoever brings that about.

        Raises what an operation under way fails with, `FailedPreconditionError` once it can no longer come about by
        itself, `DeadlineExceededError` after `timeout` seconds.
        """
        patience = _Patience(timeout)
        while (await self.refresh()).state != state:
            self._require_hope(state)
            left = patience.left
            if left is not None and left <= 0:
                raise DeadlineExceededError(
                    f"the sandbox {self.info.id} is {self.info.state}, not {state}, after {timeout:g} s",
                    details={"current_state": self.info.state},
                    retryable=True,
                )
            if self.info.operation_id is not None:
                await self._client.wait(await self._client.operation(self.info.operation_id), timeout=left)
            else:
                await anyio.sleep(WATCH_SECONDS if left is None else min(WATCH_SECONDS, left))
        return self.info

    async def wait_running(self, *, timeout: float | None = 120.0) -> SandboxInfo:
        """Wait until a sandbox that was made or woken with `wait=False` runs; raise why it does not."""
        if self.info.state != "running" and self.info.operation_id is not None:
            await self._client.wait(await self._client.operation(self.info.operation_id), timeout=timeout)
            await self.refresh()
        if self.info.state != "running":
            raise self._not("running")
        return self.info

    async def _change(self, kind: str, wait: bool, timeout: float | None, watch: Watch | None) -> SandboxInfo:
        patience = _Patience(timeout)
        operation = await self._client.change_sandbox(self.info.id, kind, wait=wait, timeout=1 if watch else timeout)
        if wait:
            await self._client.wait(operation, timeout=patience.left, watch=watch)
        return await self.refresh()

    async def _watched(self, operation: Operation, patience: "_Patience", watch: Watch) -> None:
        """Show how saving the source goes; what it fails with, each child tells."""
        try:
            await self._client.wait(operation, timeout=patience.left, watch=watch)
        except SpaceError:
            return

    async def _child(
        self, body: Mapping[str, Any], wait: bool, patience: "_Patience", watch: Watch | None
    ) -> "AsyncSandbox | SpaceError":
        from space.sdk._async.sandbox import AsyncSandbox

        if body.get("error"):
            error = body["error"]
            return error_from_envelope(
                error, details=error.get("details") or {}, retryable=error.get("retryable") is True
            )
        child = AsyncSandbox(self._client, SandboxInfo.parse(body["sandbox"]))
        if wait and child.info.state != "running":
            try:
                await self._client.wait(Operation.parse(body["operation"]), timeout=patience.left, watch=watch)
                await child.refresh()
            except SpaceError as error:
                error.details = {**error.details, "sandbox_id": child.id}
                return error
        return child

    def _require_hope(self, state: str) -> None:
        """Raise once the state cannot come about by itself."""
        if self.info.state == "deleted" or (self.info.state == "failed" and state != "deleted"):
            raise self._not(state)

    def _not(self, state: str) -> SpaceError:
        reason = f" ({self.info.reason})" if self.info.reason else ""
        return FailedPreconditionError(
            f"the sandbox {self.info.id} is {self.info.state}{reason}, not {state}",
            details={"current_state": self.info.state},
        )

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{self.info.id}"


class _Patience:
    """What is left of a call's `timeout`."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
