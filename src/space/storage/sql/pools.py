"""Warm pools and their machines; a claim happens in the transaction of a create."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from space.core.event import AuditEntry
from space.core.ids import NodeId, PooledId, SandboxId
from space.core.pool import Pool, PooledMachine, PooledState, PoolKey
from space.core.sandbox import Resources, Sandbox
from space.storage.sql import audit as audit_log
from space.storage.sql.reader import Reader
from space.storage.sql.values import instant, milliseconds, optional_instant, optional_milliseconds
from space.storage.sql.writer import Tx, Writer

_POOL = "template, runtime, vcpus, memory_mib, disk_mib, min, max, created_at"
_SET = (
    f"INSERT INTO pools ({_POOL}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  constant
    " ON CONFLICT (template, runtime, vcpus, memory_mib, disk_mib) DO UPDATE SET min = excluded.min, max = excluded.max"
    f" RETURNING {_POOL}"
)
_LIST = f"SELECT {_POOL} FROM pools ORDER BY template, runtime, vcpus, memory_mib, disk_mib"  # noqa: S608
_MACHINE = (
    "id, node_id, node_epoch, template_digest, runtime, vcpus, memory_mib, disk_mib, state, sandbox_id, generation,"
    " created_at, parked_at"
)
_PLACES = ", ".join("?" * (_MACHINE.count(",") + 1))
_ADD = f"INSERT INTO machines ({_MACHINE}) VALUES ({_PLACES})"  # noqa: S608
_MACHINES = f"SELECT {_MACHINE} FROM machines WHERE node_id = ? ORDER BY id"  # noqa: S608
_CLAIM = (
    "UPDATE machines SET state = 'bound', sandbox_id = ?, generation = ? WHERE id = ("
    "SELECT id FROM machines WHERE node_id = ? AND template_digest = ? AND runtime = ? AND vcpus = ?"
    " AND memory_mib = ? AND disk_mib = ? AND state = 'parked' ORDER BY parked_at, id LIMIT 1"
    ") RETURNING id"
)


def claim(tx: Tx, sandbox: Sandbox, key: PoolKey) -> PooledId | None:
    """Take the machine of this kind that has been parked longest on the sandbox's node; None if there is none."""
    size = key.resources
    wanted = (sandbox.node_id, key.template_digest, key.runtime, size.vcpus, size.memory_mib, size.disk_mib)
    rows = tx.execute(_CLAIM, (sandbox.id, sandbox.generation, *wanted)).fetchall()
    return PooledId(rows[0][0]) if rows else None


class SqlPools:
    """`core.store.PoolStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def set(self, pool: Pool, audit: AuditEntry) -> Pool:
        return await self._writer.run(lambda tx: _set(tx, pool, audit))

    async def delete(self, template: str, *, audit: AuditEntry) -> int:
        return await self._writer.run(lambda tx: _delete(tx, template, audit))

    async def list(self) -> Sequence[Pool]:
        return [_pool(row) for row in self._reader.rows(_LIST)]

    async def add(self, machine: PooledMachine) -> None:
        await self._writer.run(lambda tx: tx.execute(_ADD, _row(machine)) and None)

    async def parked(self, pooled_id: PooledId, *, at: datetime) -> bool:
        return await self._writer.run(lambda tx: _parked(tx, pooled_id, milliseconds(at)))

    async def retire(self, pooled_id: PooledId) -> bool:
        return await self._writer.run(lambda tx: _retire(tx, pooled_id))

    async def machines(self, node_id: NodeId) -> Sequence[PooledMachine]:
        return [_machine(row) for row in self._reader.rows(_MACHINES, (node_id,))]

    async def forget(self, pooled_id: PooledId) -> None:
        await self._writer.run(lambda tx: tx.execute("DELETE FROM machines WHERE id = ?", (pooled_id,)) and None)


def _set(tx: Tx, pool: Pool, entry: AuditEntry) -> Pool:
    size = pool.resources
    values = (pool.template, pool.runtime, size.vcpus, size.memory_mib, size.disk_mib, pool.min, pool.max)
    row = tx.execute(_SET, (*values, milliseconds(pool.created_at))).fetchall()[0]
    audit_log.append(tx, entry)
    return _pool(row)


def _delete(tx: Tx, template: str, entry: AuditEntry) -> int:
    count = tx.execute("DELETE FROM pools WHERE template = ?", (template,)).rowcount
    if count:
        audit_log.append(tx, entry)
    return count


def _parked(tx: Tx, pooled_id: str, at: int) -> bool:
    tx.execute(
        "UPDATE machines SET state = 'parked', parked_at = ? WHERE id = ? AND state = 'starting'", (at, pooled_id)
    )
    row = tx.row("SELECT state FROM machines WHERE id = ?", (pooled_id,))
    return row is not None and row[0] != PooledState.RETIRED


def _retire(tx: Tx, pooled_id: str) -> bool:
    tx.execute("UPDATE machines SET state = 'retired' WHERE id = ? AND state IN ('starting', 'parked')", (pooled_id,))
    row = tx.row("SELECT state FROM machines WHERE id = ?", (pooled_id,))
    return row is not None and row[0] == PooledState.RETIRED


def _row(machine: PooledMachine) -> tuple[Any, ...]:
    key = machine.key
    return (
        machine.id,
        machine.node_id,
        machine.node_epoch,
        key.template_digest,
        key.runtime,
        key.resources.vcpus,
        key.resources.memory_mib,
        key.resources.disk_mib,
        machine.state,
        machine.sandbox_id,
        machine.generation,
        milliseconds(machine.created_at),
        optional_milliseconds(machine.parked_at),
    )


def _machine(row: Any) -> PooledMachine:
    return PooledMachine(
        id=PooledId(row[0]),
        node_id=NodeId(row[1]),
        node_epoch=row[2],
        key=PoolKey(
            template_digest=row[3],
            runtime=row[4],
            resources=Resources(vcpus=row[5], memory_mib=row[6], disk_mib=row[7]),
        ),
        state=PooledState(row[8]),
        sandbox_id=SandboxId(row[9]) if row[9] else None,
        generation=row[10],
        created_at=instant(row[11]),
        parked_at=optional_instant(row[12]),
    )


def _pool(row: Any) -> Pool:
    return Pool(
        template=row[0],
        runtime=row[1],
        resources=Resources(vcpus=row[2], memory_mib=row[3], disk_mib=row[4]),
        min=row[5],
        max=row[6],
        created_at=instant(row[7]),
    )
