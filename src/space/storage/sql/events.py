"""Timelines of sandboxes: `seq` counts from 1 without gaps within each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from space.core.event import Event
from space.core.ids import OperationId, ProjectId, SandboxId
from space.core.sandbox import Sandbox
from space.storage.sql.reader import Reader
from space.storage.sql.values import from_json, instant, milliseconds, to_json
from space.storage.sql.writer import Tx, Writer


def append(tx: Tx, event: Event) -> Event:
    """Add an event inside the transaction of the change that it tells of, and wake who watches the sandbox."""
    row = tx.row("SELECT COALESCE(MAX(seq), 0) + 1 FROM events WHERE sandbox_id = ?", (event.sandbox_id,))
    event = replace(event, seq=row[0])
    tx.execute(
        "INSERT INTO events (sandbox_id, seq, project_id, operation_id, type, data, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            event.sandbox_id,
            event.seq,
            event.project_id,
            event.operation_id,
            event.type,
            to_json(event.data),
            milliseconds(event.at),
        ),
    )
    tx.touch(event.sandbox_id)
    return event


def tell(
    tx: Tx,
    sandbox: Sandbox,
    type: str,
    *,
    at: datetime,
    operation_id: OperationId | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Add an event of `sandbox`, with the state that users see after it."""
    append(
        tx,
        Event(
            project_id=sandbox.project_id,
            sandbox_id=sandbox.id,
            operation_id=operation_id,
            type=type,
            data={"state": sandbox.shown_state, **(data or {})},
            at=at,
        ),
    )


class SqlEvents:
    """`core.store.EventStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, event: Event) -> Event:
        return await self._writer.run(lambda tx: append(tx, event))

    async def read(self, sandbox_id: str, *, after: int, limit: int) -> Sequence[Event]:
        rows = self._reader.rows(
            "SELECT seq, project_id, operation_id, type, data, at FROM events"
            " WHERE sandbox_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (sandbox_id, after, limit),
        )
        return [
            Event(
                seq=row[0],
                project_id=ProjectId(row[1]),
                sandbox_id=SandboxId(sandbox_id),
                operation_id=OperationId(row[2]) if row[2] else None,
                type=row[3],
                data=from_json(row[4]),
                at=instant(row[5]),
            )
            for row in rows
        ]
