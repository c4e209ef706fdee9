"""The audit log."""

from space.core.event import AuditEntry
from space.storage.sql.reader import Reader
from space.storage.sql.values import milliseconds, optional_milliseconds, to_json  # noqa: F401
from space.storage.sql.writer import Tx, Writer

_INSERT = (
    "INSERT INTO audit (project_id, principal, action, target, outcome, request_id, address, details, at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def append(tx: Tx, entry: AuditEntry) -> None:
    """Add an entry inside the transaction of the change that it tells of."""
    tx.execute(
        _INSERT,
        (
            entry.project_id,
            entry.principal,
            entry.action,
            entry.target,
            entry.outcome,
            entry.request_id,
            entry.address,
            to_json(entry.details),
            milliseconds(entry.at),
        ),
    )


class SqlAudit:
    """`core.store.AuditStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
