"""What the store does with processes, sessions and session tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from space.core.account import IdempotencyRef
from space.core.command import Process, SessionToken
from space.core.event import AuditEntry
from space.core.ids import ProcessId, SandboxId, SessionId
from space.core.ports import SessionStatus
from space.core.store.pages import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProcess:
    """All that the transaction of a command's creation records."""

    process: Process  #: its generation is filled in by the store
    token: SessionToken | None
    audit: AuditEntry
    idempotency: IdempotencyRef | None = None
    max_unfinished: int = 1000  #: processes of one sandbox that may be created or running


class ProcessStore(Protocol):
    """The rows of processes, sessions and session tokens."""

    async def create(self, new: NewProcess) -> Process:
        """Record process, token, audit entry and idempotency link together, for the sandbox's present machine.

        Raises:
            NotFound: no such sandbox in the process's project.
            OperationInProgress, FailedPrecondition: it does not run (`core.lifecycle.require_running`).
            LimitExceeded: too many are unfinished.
        """
        ...

    async def find(self, process_id: str) -> Process | None: ...

    async def find_session(self, session_id: str) -> Process | None: ...

    async def list(
        self, sandbox_id: SandboxId, *, ended_after: datetime, limit: int, cursor: str | None
    ) -> Page[Process]:
        """Page in the order of ids, without those that ended longer ago; fewer than `limit` if they are large."""
        ...

    async def unfinished(self, *, after: tuple[str, str] = ("", ""), limit: int) -> Sequence[Process]:
        """Return what is created or running in any sandbox, after (sandbox id, process id); some, if there are any."""
        ...

    async def request_start(self, session_id: SessionId, *, at: datetime) -> tuple[Process, int | None]:
        """Write down that a `created` process is about to be started, and return the machine's generation.

        The generation is None if there is nothing to start.  Raises as `create` does.
        """
        ...

    async def end_unstarted(
        self,
        process_id: ProcessId,
        *,
        reason: str,
        at: datetime,
        audit: AuditEntry | None,
        even_if_requested: bool = False,
    ) -> bool:
        """End a `created` process without starting it; returns whether it was one.

        One whose start was requested is ended only with `even_if_requested`, by a caller who knows that no start
        is under way and that no node has it.
        """
        ...

    async def observe(self, *statuses: SessionStatus) -> None:
        """Take over what journals say.  A state never goes back, but a seen exit replaces a presumed loss."""
        ...

    async def lose(self, sandbox_id: SandboxId, generation: int, *, reason: str, at: datetime) -> None:
        """Mark what ran on machines up to `generation` as lost."""
        ...

    async def add_token(self, token: SessionToken, audit: AuditEntry | None) -> None: ...

    async def find_token(self, token_hash: bytes) -> SessionToken | None: ...

    async def expired(self, ended_before: datetime, *, limit: int) -> Sequence[SessionId]:
        """Find sessions of processes that ended, or were recorded and never started, before then."""
        ...

    async def never_arrived(self, requested_before: datetime, *, limit: int) -> Sequence[SessionId]:
        """Find sessions whose start was requested before then, of which no node has told anything since."""
        ...

    async def purge(self, sessions: Sequence[SessionId]) -> None:
        """Forget these processes."""
        ...
