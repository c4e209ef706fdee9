"""What ties the journals of open sessions to the moments of their machine."""

from collections.abc import Collection
from pathlib import Path

import anyio.to_thread

from space.core.node import MachineRef
from space.host.failpoint import failpoint
from space.node.full_disk import full_disk_refuses
from space.node.journal.disk import sparse_copy
from space.node.journal.folder import JournalFolder
from space.node.moment import Moment, SessionMark
from space.node.observations import Observations
from space.node.sessions import Sessions


class Continuity:
    """Saves the open journals of a machine with its moment, and has them go on from there."""

    def __init__(self, journals: JournalFolder, sessions: Sessions, observations: Observations) -> None:
        self._journals = journals
        self._sessions = sessions
        self._observations = observations

    def marks(self, ref: MachineRef) -> list[SessionMark]:
        """Return where the open journals are; nobody may be connected to the machine's agent."""
        heads = [(session.journal, session.journal.head) for session in self._sessions.of(ref.sandbox_id)]
        return [
            SessionMark(
                session_id=head.session_id,
                process_id=head.process_id,
                position=journal.end,
                written=journal.written,
            )
            for journal, head in heads
        ]

    async def sync(self, marks: Collection[SessionMark]) -> None:
        """Return once the journals are on the disk."""
        journals = [self._journals.find(mark.session_id) for mark in marks]
        for journal in journals:
            if journal is not None:
                await anyio.to_thread.run_sync(journal.sync)

    async def copy(self, marks: Collection[SessionMark], into: Path) -> None:
        """Copy the journals up to their marks into a directory; raises `InsufficientStorage`."""
        found = [(self._journals.find(mark.session_id), mark.position) for mark in marks]

        def copy() -> None:
            into.mkdir(mode=0o700, exist_ok=True)
            for journal, position in found:
                if journal is not None:
                    sparse_copy(journal.path, into / journal.head.session_id, position, sync=False)

        with full_disk_refuses("a copy of the journals"):
            await anyio.to_thread.run_sync(copy)

    async def take_over(self, ref: MachineRef, moment: Moment, copies: Path) -> None:
        """Have the sandbox's journals go on from a moment; those that this node lacks are taken from `copies`.

        A journal that is ahead of the moment says so with `rolled_back`; sessions that began after it are lost.
        Idempotent: what was done before is not said twice.
        """
        for mark in moment.sessions:
            journal = self._journals.find(mark.session_id)
            if journal is None or journal.end < mark.position:
                journal = await self._journals.install(mark.session_id, copies / mark.session_id, mark.position)
            elif journal.end > mark.position or journal.is_final:
                await journal.roll_back(mark.written)
            self._sessions.reopen(journal)
            self._observations.put(journal.status())
            failpoint("continuity.after_journal")
        kept = {mark.session_id for mark in moment.sessions}
        await self._sessions.lost_but(ref.sandbox_id, kept, "rolled_back")
