"""Reading a session: the node's journal, and an honest end where the journal has none."""

import json
from collections.abc import AsyncIterator, Mapping

from space.control.closing import closing
from space.control.observed import Observed
from space.core.command import Process, ProcessState
from space.core.errors import InvalidRequest, NotFound
from space.core.ids import SessionId
from space.core.journal import JournalRecord, RecordKind, Trimmed
from space.core.ports import NodeClient
from space.core.store import Store


class Transcripts:
    """Reads sessions, whether or not their sandbox has a machine."""

    def __init__(self, store: Store, node: NodeClient, observed: Observed) -> None:
        self._store = store
        self._node = node
        self._observed = observed

    async def read(
        self, session_id: SessionId, *, start: int = 0, follow: bool = True
    ) -> AsyncIterator[JournalRecord | Trimmed]:
        """Yield the records after `start`; see `NodeClient.read_session`.

        If the row says that the process has ended and the journal does not know, a final record is made up from the
        row, never an exit that nobody saw: `sandbox_lost`, or `process_exited` of one killed before it started.
        """
        process = await self._find(session_id)
        status = await self._node.session_status(session_id) if _is_final(process.state) else None
        has_end = status is not None and _is_final(status.state)
        position = start
        if status is not None or not _is_final(process.state):
            follows = follow and (has_end or not _is_final(process.state))
            async with closing(self._node.read_session(session_id, start=start, follow=follows)) as records:
                async for record in records:
                    if isinstance(record, JournalRecord):
                        position = record.position
                    yield record
        if has_end or not _is_final(process.state):
            return
        if status is None:
            if start not in (0, 1):
                raise InvalidRequest(f"the session has no record that ends at {start}", field="from")
            position = 1
            if start == position:
                return
        yield _ending(process, position)

    async def _find(self, session_id: SessionId) -> Process:
        process = await self._store.processes.find_session(session_id)
        if process is None:
            raise NotFound(f"no session {session_id[:64]}", id=session_id[:64])
        return self._observed.lay_over(process)


def _is_final(state: ProcessState) -> bool:
    return state in (ProcessState.EXITED, ProcessState.LOST)


def _ending(process: Process, position: int) -> JournalRecord:
    if process.state is ProcessState.LOST:
        return _record(RecordKind.SANDBOX_LOST, position, {"reason": process.reason})
    return _record(
        RecordKind.PROCESS_EXITED,
        position,
        {
            "exit_code": process.exit_code,
            "signal": process.signal,
            "reason": process.reason,
            "at": process.exited_at.isoformat().replace("+00:00", "Z") if process.exited_at else None,
            "stdout_bytes": process.stdout_bytes,
            "stderr_bytes": process.stderr_bytes,
        },
    )


def _record(kind: RecordKind, position: int, data: Mapping[str, object]) -> JournalRecord:
    return JournalRecord(position, kind, 0, json.dumps(data, separators=(",", ":")).encode())
