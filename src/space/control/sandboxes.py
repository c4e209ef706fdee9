"""Sandboxes as callers see them: admit a change, record it, hand it to the operation worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from space.core.account import Call, Principal
from space.core.event import Event
from space.core.operation import Operation
from space.core.sandbox import AutoLifecycle, Sandbox, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Page[T]:  # noqa: a placeholder signature; 3.11 needs Generic[T]
    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFilter:
    state: str | None = None
    template: str | None = None
    runtime: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
    newest_first: bool = True


class Sandboxes:
    async def create(self, call: Call, spec: SandboxSpec) -> tuple[Sandbox, Operation]: ...
    async def get(self, who: Principal, sandbox_id: str) -> Sandbox: ...
    async def list(self, who: Principal, where: SandboxFilter, *, limit: int, cursor: str | None) -> Page[Sandbox]: ...
    async def delete(self, call: Call, sandbox_id: str) -> Operation: ...
    async def update(
        self, call: Call, sandbox_id: str, *, metadata: Mapping[str, str] | None, auto_lifecycle: AutoLifecycle | None
    ) -> Sandbox: ...
    async def extend(self, call: Call, sandbox_id: str, *, seconds: int) -> Sandbox: ...
    async def events(self, who: Principal, sandbox_id: str, *, after: int, limit: int) -> Sequence[Event]: ...
    async def wait_event(self, sandbox_id: str, *, after: int, seconds: float) -> None: ...


class Operations:
    async def get(self, who: Principal, operation_id: str) -> Operation: ...
    async def wait(self, who: Principal, operation_id: str, *, seconds: float) -> Operation: ...
