"""What a snapshot's manifest says of its machine, beside the files: written by one node, read by whichever restores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from space.core.errors import Unsupported
from space.core.ids import ProcessId, SandboxId, SessionId, is_id
from space.core.node import Capabilities, MachineOrder
from space.core.sandbox import Resources

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMark:
    """Where the journal of an open session was."""

    session_id: SessionId
    process_id: ProcessId
    position: int  #: offset after the last record
    written: tuple[int, int, int]  #: bytes of stdout, stderr and pty


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One machine at the time of its snapshot."""

    sandbox_id: SandboxId
    generation: int
    runtime: str
    snapshot_format: str
    template_digest: str
    resources: Resources
    token: str = field(repr=False)  #: that the agent in the image has
    taken_at: datetime
    sessions: Sequence[SessionMark] = ()

    def encode(self) -> Mapping[str, Any]:
        resources = self.resources
        return {
            "version": VERSION,
            "sandbox_id": self.sandbox_id,
            "generation": self.generation,
            "runtime": self.runtime,
            "snapshot_format": self.snapshot_format,
            "template_digest": self.template_digest,
            "resources": [resources.vcpus, resources.memory_mib, resources.disk_mib],
            "token": self.token,
            "taken_at": self.taken_at.isoformat(),
            "sessions": [
                [mark.session_id, mark.process_id, mark.position, list(mark.written)] for mark in self.sessions
            ],
        }

    @classmethod
    def decode(cls, meta: Mapping[str, Any]) -> "Moment":
        """Raise `Unsupported` for a manifest that this version does not read."""
        try:
            if meta["version"] != VERSION:
                raise ValueError(f"version {meta['version']!r} is not {VERSION}")
            vcpus, memory_mib, disk_mib = map(int, meta["resources"])
            return cls(
                sandbox_id=SandboxId(meta["sandbox_id"]),
                generation=int(meta["generation"]),
                runtime=str(meta["runtime"]),
                snapshot_format=str(meta["snapshot_format"]),
                template_digest=str(meta["template_digest"]),
                resources=Resources(vcpus=vcpus, memory_mib=memory_mib, disk_mib=disk_mib),
                token=str(meta["token"]),
                taken_at=datetime.fromisoformat(meta["taken_at"]),
                sessions=[_mark(*item) for item in meta["sessions"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unsupported("the snapshot is of a kind that this node does not read", feature="snapshot") from error

    def require_fit(self, order: MachineOrder, capabilities: Capabilities | None) -> None:
        """Raise `Unsupported` unless `order` can go on from here on this host."""
        here = capabilities.snapshot_format if capabilities is not None else None
        wanted = {
            "runtime": (self.runtime, order.runtime),
            "snapshot format": (self.snapshot_format, here),
            "template": (self.template_digest, order.template_digest),
            "size": (self.resources, order.resources),
        }
        for what, (then, now) in wanted.items():
            if then != now:
                raise Unsupported(
                    f"the snapshot needs {what} {then}, this machine has {now or 'none'}", feature="memory_snapshot"
                )


def _mark(session_id: str, process_id: str, position: int, written: Sequence[int]) -> SessionMark:
    stdout, stderr, pty = map(int, written)
    if not is_id(session_id, "ses") or not is_id(process_id, "prc") or min(position, stdout, stderr, pty) < 0:
        raise ValueError("not the mark of a session")
    return SessionMark(
        session_id=SessionId(session_id),
        process_id=ProcessId(process_id),
        position=int(position),
        written=(stdout, stderr, pty),
    )
