"""The rows of operations."""

from space.storage.sql.reader import Reader
from space.storage.sql.writer import Writer


class SqlOperations:
    """`core.store.OperationStore`."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
