"""A project's quotas and a node's room, checked in the transaction that uses them."""

from typing import Any

from space.core.errors import CapacityUnavailable, LimitExceeded, NotFound
from space.core.sandbox import Sandbox
from space.core.store import Creation, Room
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx

_MINUTE_MS = 60_000
_WITH_MACHINE = "(state IN ('pending', 'running', 'paused') OR held_kind IN ('wake', 'recover'))"
_COUNT_SANDBOXES = (
    "SELECT COUNT(*), COALESCE(SUM(memory_mib), 0) FROM sandboxes"  # noqa: S608  constant
    f" WHERE node_id = ? AND state <> 'deleted' AND {_WITH_MACHINE}"
)
_COUNT_POOLED = (  # those that were claimed count with their sandbox
    "SELECT COUNT(*), COALESCE(SUM(memory_mib), 0) FROM machines WHERE node_id = ? AND state <> 'bound'"
)


def check(tx: Tx, creation: Creation) -> None:
    """Raise `LimitExceeded` if one more such sandbox would be too much; counts only what is limited."""
    sandbox = creation.sandbox
    row = tx.row(
        "SELECT max_sandboxes, max_vcpus, max_memory_mib, max_disk_mib, max_creates_per_minute FROM projects"
        " WHERE id = ?",
        (sandbox.project_id,),
    )
    if row is None:
        raise NotFound(f"project {sandbox.project_id} does not exist")
    sandboxes, vcpus, memory_mib, disk_mib, creates = row
    sandboxes = creation.default_max_sandboxes if sandboxes is None else sandboxes
    _check_total(tx, sandbox.project_id, "sandboxes", "COUNT(*)", "state <> 'deleted'", 1, sandboxes)
    _check_machine(tx, sandbox, vcpus, memory_mib)
    _check_total(
        tx, sandbox.project_id, "disk_mib", "SUM(disk_mib)", "state <> 'failed'", sandbox.resources.disk_mib, disk_mib
    )
    _check_rate(tx, sandbox.project_id, milliseconds(sandbox.created_at), creates)


def check_start(tx: Tx, sandbox: Sandbox) -> None:
    """Raise `LimitExceeded` if the sandbox may not have a machine again: suspended ones do not count."""
    row = tx.row("SELECT max_vcpus, max_memory_mib FROM projects WHERE id = ?", (sandbox.project_id,))
    _check_machine(tx, sandbox, *row)


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


def _check_machine(tx: Tx, sandbox: Sandbox, vcpus: Any, memory_mib: Any) -> None:
    wanted = sandbox.resources
    _check_total(tx, sandbox.project_id, "vcpus", "SUM(vcpus)", _WITH_MACHINE, wanted.vcpus, vcpus)
    _check_total(tx, sandbox.project_id, "memory_mib", "SUM(memory_mib)", _WITH_MACHINE, wanted.memory_mib, memory_mib)


def _check_total(tx: Tx, project_id: str, quota: str, total: str, where: str, wanted: int, limit: Any) -> None:
    if limit is None:
        return
    query = f"SELECT {total} FROM sandboxes WHERE project_id = ? AND state <> 'deleted' AND {where}"  # noqa: S608
    used = tx.row(query, (project_id,))[0] or 0
    if used + wanted > limit:
        raise LimitExceeded(
            f"the project's quota of {quota} is used up: {used} of {limit}; delete sandboxes or ask for a higher quota",
            quota=quota,
            limit=limit,
            used=used,
        )


def _check_rate(tx: Tx, project_id: str, now_ms: int, limit: Any) -> None:
    if limit is None:
        return
    used, oldest = tx.row(
        "SELECT COUNT(*), MIN(created_at) FROM sandboxes WHERE project_id = ? AND created_at > ?",
        (project_id, now_ms - _MINUTE_MS),
    )
    if used >= limit:
        raise LimitExceeded(
            f"the project may create {limit} sandboxes a minute; wait and try again",
            retry_after=max(1.0, ((oldest or now_ms) + _MINUTE_MS - now_ms) / 1000),
            quota="creates_per_minute",
            limit=limit,
            used=used,
        )
