"""A project's quotas and a node's room, checked in the transaction that uses them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol

from space.core.errors import CapacityUnavailable, LimitExceeded, NotFound
from space.core.ids import ProjectId
from space.core.lifecycle import State
from space.core.sandbox import Resources, Sandbox
from space.core.snapshot import MAX_NAMED, Purpose, Snapshot
from space.core.store import Creation, Room
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx

_MINUTE_MS = 60_000
_WITH_MACHINE = "(state IN ('pending', 'running', 'paused') OR held_kind IN ('wake', 'recover'))"
_WITH_DISK = "(state <> 'failed' OR held_kind = 'recover')"
_COUNT_SANDBOXES = (
    "SELECT COUNT(*), COALESCE(SUM(memory_mib), 0) FROM sandboxes"  # noqa: S608  constant
    f" WHERE node_id = ? AND state <> 'deleted' AND {_WITH_MACHINE}"
)
_COUNT_POOLED = (  # those that were claimed count with their sandbox
    "SELECT COUNT(*), COALESCE(SUM(memory_mib), 0) FROM machines WHERE node_id = ? AND state <> 'bound'"
)
_COUNT_NAMED = (
    "SELECT COUNT(*) FROM snapshots"  # noqa: S608  constant
    f" WHERE project_id = ? AND purpose = '{Purpose.NAMED}' AND state <> 'deleting'"
)
_Use = tuple[str, int, int, int]  # quota, what is used of it, what is wanted, its limit


class _Rows(Protocol):
    """A transaction, or the reader where nothing is decided by the answer."""

    def row(self, sql: str, parameters: Any = ()) -> Any: ...


def check(tx: Tx, creation: Creation) -> None:
    """Raise `LimitExceeded` if one more such sandbox would be too much; counts only what is limited."""
    sandbox, at = creation.sandbox, creation.sandbox.created_at
    for use in _uses(tx, sandbox.project_id, sandbox.resources, creation.default_max_sandboxes):
        _check(use)
    used, limit, oldest = _creates(tx, sandbox.project_id, at)
    if limit is not None and used >= limit:
        now_ms = milliseconds(at)
        raise LimitExceeded(
            f"the project may create {limit} sandboxes a minute; wait and try again",
            retry_after=max(1.0, ((oldest or now_ms) + _MINUTE_MS - now_ms) / 1000),
            quota="creates_per_minute",
            limit=limit,
            used=used,
        )


def left(rows: _Rows, project_id: ProjectId, resources: Resources, default_max: int | None, *, at: datetime) -> int:
    """Return how many more such sandboxes the project may make; a large number if nothing limits them."""
    most = [(limit - used) // wanted for _, used, wanted, limit in _uses(rows, project_id, resources, default_max)]
    used, limit, _ = _creates(rows, project_id, at)
    return max(0, min([*most, 1 << 30 if limit is None else limit - used]))


def check_start(tx: Tx, sandbox: Sandbox) -> None:
    """Raise `LimitExceeded` if the sandbox may not have a machine again.

    A suspended one does not count until then but for its disk, a failed one not even for that.
    """
    vcpus, memory_mib, disk_mib = tx.row(
        "SELECT max_vcpus, max_memory_mib, max_disk_mib FROM projects WHERE id = ?", (sandbox.project_id,)
    )
    for use in _machine(tx, sandbox.project_id, sandbox.resources, vcpus, memory_mib):
        _check(use)
    if sandbox.state is State.FAILED:
        for use in _disk(tx, sandbox.project_id, sandbox.resources, disk_mib):
            _check(use)


def check_snapshot(tx: Tx, snapshot: Snapshot) -> None:
    """Raise `LimitExceeded` if the project has as many snapshots as it may keep until somebody deletes them."""
    if snapshot.purpose is Purpose.NAMED:
        used = tx.row(_COUNT_NAMED, (snapshot.project_id,))[0]
        if used >= MAX_NAMED:
            raise LimitExceeded(
                f"the project keeps {used} snapshots, as many as it may; delete some",
                quota="snapshots",
                limit=MAX_NAMED,
                used=used,
            )


def check_room(tx: Tx, sandbox: Sandbox, room: Room) -> None:
    """Count what the node is promised to already: many creates at once must not promise the same memory twice."""
    machines, memory_mib = tx.row(_COUNT_SANDBOXES, (sandbox.node_id,))
    pooled, pooled_mib = tx.row(_COUNT_POOLED, (sandbox.node_id,))
    machines, memory_mib = machines + pooled, memory_mib + pooled_mib
    if machines >= room.machines:
        raise CapacityUnavailable(
            f"the node holds its maximum of {room.machines} sandboxes; delete some or raise SPACE_MAX_MACHINES",
            retry_after=5,
            quota="machines",
            limit=room.machines,
        )
    if memory_mib + sandbox.resources.memory_mib > room.memory_mib:
        raise CapacityUnavailable(
            f"the node has {max(0, room.memory_mib - memory_mib)} of {room.memory_mib} MiB of memory left; "
            "delete sandboxes or ask for less",
            retry_after=5,
            quota="memory_mib",
            limit=room.memory_mib,
        )


def _uses(rows: _Rows, project_id: ProjectId, resources: Resources, default_max: int | None) -> Iterator[_Use]:
    """Yield what a new sandbox needs of each quota that there is but the rate."""
    row = rows.row(
        "SELECT max_sandboxes, max_vcpus, max_memory_mib, max_disk_mib FROM projects WHERE id = ?", (project_id,)
    )
    if row is None:
        raise NotFound(f"project {project_id} does not exist")
    sandboxes, vcpus, memory_mib, disk_mib = row
    sandboxes = default_max if sandboxes is None else sandboxes
    yield from _use(rows, project_id, "sandboxes", "COUNT(*)", "state <> 'deleted'", 1, sandboxes)
    yield from _machine(rows, project_id, resources, vcpus, memory_mib)
    yield from _disk(rows, project_id, resources, disk_mib)


def _machine(
    rows: _Rows, project_id: ProjectId, wanted: Resources, vcpus: int | None, memory_mib: int | None
) -> Iterator[_Use]:
    yield from _use(rows, project_id, "vcpus", "SUM(vcpus)", _WITH_MACHINE, wanted.vcpus, vcpus)
    yield from _use(rows, project_id, "memory_mib", "SUM(memory_mib)", _WITH_MACHINE, wanted.memory_mib, memory_mib)


def _disk(rows: _Rows, project_id: ProjectId, wanted: Resources, disk_mib: int | None) -> Iterator[_Use]:
    yield from _use(rows, project_id, "disk_mib", "SUM(disk_mib)", _WITH_DISK, wanted.disk_mib, disk_mib)


def _use(
    rows: _Rows, project_id: ProjectId, quota: str, total: str, where: str, wanted: int, limit: int | None
) -> Iterator[_Use]:
    if limit is not None:
        query = f"SELECT {total} FROM sandboxes WHERE project_id = ? AND state <> 'deleted' AND {where}"  # noqa: S608
        yield quota, rows.row(query, (project_id,))[0] or 0, wanted, limit


def _check(use: _Use) -> None:
    quota, used, wanted, limit = use
    if used + wanted > limit:
        raise LimitExceeded(
            f"the project's quota of {quota} is used up: {used} of {limit}; delete sandboxes or ask for a higher quota",
            quota=quota,
            limit=limit,
            used=used,
        )


def _creates(rows: _Rows, project_id: ProjectId, at: datetime) -> tuple[int, int | None, int | None]:
    """Return how many sandboxes were made within a minute, how many may be, and when the first was."""
    (limit,) = rows.row("SELECT max_creates_per_minute FROM projects WHERE id = ?", (project_id,)) or (None,)
    if limit is None:
        return 0, None, None
    used, oldest = rows.row(
        "SELECT COUNT(*), MIN(created_at) FROM sandboxes WHERE project_id = ? AND created_at > ?",
        (project_id, milliseconds(at) - _MINUTE_MS),
    )
    return used, limit, oldest
