"""What becomes of processes when their sandbox gets another machine, or none."""

from datetime import datetime

from space.core.snapshot import Snapshot
from space.storage.sql.values import milliseconds
from space.storage.sql.writer import Tx

_ROLLED_BACK = "rolled_back"


def lose(tx: Tx, sandbox_id: str, generation: int, *, reason: str, at: datetime) -> None:
    """Mark what ran on machines up to `generation` as lost, inside the transaction that ends the machine."""
    rows = tx.execute(
        "UPDATE processes SET state = 'lost', reason = ?, exited_at = ?"
        " WHERE sandbox_id = ? AND generation <= ? AND state IN ('created', 'running') RETURNING id",
        (reason, milliseconds(at), sandbox_id, generation),
    ).fetchall()
    tx.touch(*(row[0] for row in rows))


def hand_over(tx: Tx, sandbox_id: str, generation: int, snapshot: Snapshot | None) -> None:
    """Let what was suspended go on as the machine of `generation`: nothing that is said of an older one ends it.

    That takes back what was said of it meanwhile.  After the moment nothing ran there, so it was lost with a machine
    that was not needed any more, as when the host went down before it was given up.
    """
    rows = tx.execute(
        "UPDATE processes SET generation = ? WHERE sandbox_id = ? AND state IN ('created', 'running') RETURNING id",
        (generation, sandbox_id),
    ).fetchall()
    if snapshot is not None:
        moment = _moment(snapshot)
        rows += tx.execute(
            "UPDATE processes SET state = 'running', generation = ?, reason = NULL, exited_at = NULL"
            " WHERE sandbox_id = ? AND state = 'lost' AND started_at <= ? AND exited_at >= ? RETURNING id",
            (generation, sandbox_id, moment, moment),
        ).fetchall()
    tx.touch(*(row[0] for row in rows))


def roll_back(tx: Tx, sandbox_id: str, generation: int, snapshot: Snapshot, *, at: datetime) -> None:
    """Bring back, on the machine of `generation`, what ran at a snapshot's moment; what came later is lost.

    Starts and ends have the time of their journals' records, by the clock that told the moment; while a machine is
    being saved there are none.  An end in the same millisecond came before: saving a machine takes longer.
    """
    if snapshot.ready_at is None:
        raise AssertionError(f"snapshot {snapshot.id} was never ready")
    moment = _moment(snapshot)
    rows = tx.execute(
        "UPDATE processes SET state = 'running', generation = ?, exit_code = NULL, signal = NULL, reason = NULL,"
        " exited_at = NULL WHERE sandbox_id = ? AND started_at <= ? AND ("
        "state = 'running' OR (state = 'lost' AND exited_at >= ?) OR (state = 'exited' AND exited_at > ?)"
        ") RETURNING id",
        (generation, sandbox_id, moment, moment, moment),
    ).fetchall()
    tx.touch(*(row[0] for row in rows))
    lose(tx, sandbox_id, generation - 1, reason=_ROLLED_BACK, at=at)


def _moment(snapshot: Snapshot) -> int:
    return milliseconds(snapshot.taken_at or snapshot.created_at)
