"""The rows of events."""

from space.storage.sql.reader import Reader
from space.storage.sql.writer import Writer


class SqlEvents:
    """`core.store.EventStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
