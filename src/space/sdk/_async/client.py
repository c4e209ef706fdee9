"""One server and one token, and all that can be asked of it beside what a sandbox offers."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

import httpx

from space.sdk import http
from space.sdk._async.operations import prefer, wait_operation
from space.sdk._async.snapshots import AsyncSnapshots
from space.sdk._async.transport import AsyncTransport
from space.sdk.bodies import list_query, sandbox_body, without_none
from space.sdk.model import LoginSession, Operation, Page, SandboxInfo
from space.sdk.retry import RetryPolicy
from space.sdk.settings import ClientSettings, resolve_settings
from space.sdk.times import format_time


class AsyncClient:
    """A connection to SPACE.  What is not given comes from `SPACE_*`, then from the local server's `cli.json`."""

    def __init__(
        self,
        api_url: str | None = None,
        token: str | None = None,
        *,
        data_plane_url: str | None = None,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = resolve_settings(api_url, token, data_plane_url)
        self.transport = AsyncTransport(settings, retry=retry, transport=transport)
        self.snapshots = AsyncSnapshots(self.transport)

    @staticmethod
    async def login(email: str, password: str, *, api_url: str | None = None) -> LoginSession:
        """Log in with a password; use the session's `api_url` and `token` to make a client."""
        settings = resolve_settings(api_url, needs_token=False)
        transport = AsyncTransport(ClientSettings(settings.api_url, ""))
        body = {"email": email, "password": password}
        try:
            # Logins are excluded from idempotency, and a wrong password must not be tried five times.
            response = await transport.request("POST", "/auth/v1/sessions", json=body, only_unsent=True)
            return LoginSession.parse(http.answer_object(response), settings.api_url)
        finally:
            await transport.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.transport.settings!r})"

    async def create_sandbox(
        self, template: str = "base", *, wait: bool = True, timeout: float | None = 120.0, **fields: Any
    ) -> SandboxInfo:
        """Create a sandbox; `fields` are those of `AsyncSandbox.create`."""
        began = time.monotonic()
        body = sandbox_body(template, **fields)
        response = await self.transport.request("POST", "/v1/sandboxes", json=body, headers=prefer(wait, timeout))
        answer = http.answer_object(response)
        info = SandboxInfo.parse(answer.get("sandbox", answer))
        if not wait or info.state == "running":
            return info
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        await self.wait(Operation.parse(answer["operation"]), timeout=left)
        return await self.get_sandbox(info.id)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        """Return a sandbox's present state."""
        response = await self.transport.request("GET", f"/v1/sandboxes/{http.segment(sandbox_id)}")
        return SandboxInfo.parse(http.answer_object(response))

    async def sandboxes_page(
        self,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        order: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **filters: str | datetime | None,
    ) -> Page[SandboxInfo]:
        """Return one page of sandboxes; `filters` are `state`, `template`, `runtime`, `created_after`/`…_before`."""
        query = list_query(metadata, limit=limit, cursor=cursor, order=order, **filters)
        body = http.answer_object(await self.transport.request("GET", "/v1/sandboxes", query=query))
        return Page(tuple(SandboxInfo.parse(item) for item in body.get("items", ())), body.get("next_cursor"))

    async def sandboxes(self, **filters: Any) -> AsyncIterator[SandboxInfo]:
        """Yield all sandboxes that match, page by page."""
        cursor: str | None = None
        while True:
            page = await self.sandboxes_page(cursor=cursor, **filters)
            for info in page.items:
                yield info
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_sandbox(self, sandbox_id: str) -> Operation:
        """Begin to delete a sandbox."""
        body = http.answer_object(await self.transport.request("DELETE", f"/v1/sandboxes/{http.segment(sandbox_id)}"))
        return Operation.parse(body.get("operation", body))

    async def change_sandbox(
        self, sandbox_id: str, kind: str, *, wait: bool = False, timeout: float | None = None
    ) -> Operation:
        """Begin to `pause`, `suspend`, `wake` or `recover` a sandbox; with `wait`, give it a while to end."""
        path = f"/v1/sandboxes/{http.segment(sandbox_id)}/{kind}"
        return Operation.parse(
            http.answer_object(await self.transport.request("POST", path, headers=prefer(wait, timeout)))
        )

    async def operation(self, operation_id: str) -> Operation:
        """Return an operation's present state."""
        response = await self.transport.request("GET", f"/v1/operations/{http.segment(operation_id)}")
        return Operation.parse(http.answer_object(response))

    async def wait(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        watch: Callable[[Operation], None] | None = None,
    ) -> Operation:
        """Wait until an operation has ended; raise what it failed with.

        `watch` is shown the operation about once a second meanwhile, for its step and progress.
        """
        if watch is None:
            return await wait_operation(self.transport, operation, timeout=timeout)
        return await wait_operation(self.transport, operation, timeout=timeout, watch=watch, every=1)

    async def create_token(
        self,
        name: str,
        scopes: Sequence[str] | None = None,
        *,
        preset: str | None = None,
        kind: str | None = None,
        expires_at: datetime | None = None,
        project: str | None = None,
        templates: Sequence[str] | None = None,
    ) -> Mapping[str, Any]:
        """Create a token with scopes, or with the preset `read-only`; the answer holds its secret, this once."""
        body = without_none(
            {
                "name": name,
                "scopes": None if scopes is None else list(scopes),
                "preset": preset,
                "kind": kind,
                "expires_at": None if expires_at is None else format_time(expires_at),
                "project": project,
                "templates": None if templates is None else list(templates),
            }
        )
        return http.answer_object(await self.transport.request("POST", "/auth/v1/tokens", json=body))

    async def tokens(self) -> Sequence[Mapping[str, Any]]:
        """List tokens, without their secrets."""
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        while True:
            query = without_none({"cursor": cursor})
            body = http.answer_object(await self.transport.request("GET", "/auth/v1/tokens", query=query))
            found += body.get("items", ())
            cursor = body.get("next_cursor")
            if cursor is None:
                return found

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token; it stops working everywhere within five seconds."""
        await self.transport.request("DELETE", f"/auth/v1/tokens/{http.segment(token_id)}")

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of any other route."""
        return http.answer_json(await self.transport.request("GET", path, query=query or None))

    async def aclose(self) -> None:
        await self.transport.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        await self.aclose()
        return False
