import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.harness import World

from space.core.ids import ProcessId, SandboxId, SessionId, make_id
from space.core.node import MachineRef
from space.node.journal.folder import JournalFolder
from space.node.journal.summary import JournalHead


class Ids:
    """Fresh ids of each kind."""

    def __init__(self) -> None:
        self._count = 0

    def _make(self, prefix: str) -> str:
        self._count += 1
        return make_id(prefix, unix_ms=self._count, randomness=os.urandom(10))

    def sandbox(self) -> SandboxId:
        return SandboxId(self._make("sbx"))

    def session(self) -> SessionId:
        return SessionId(self._make("ses"))

    def process(self) -> ProcessId:
        return ProcessId(self._make("prc"))

    def ref(self, generation: int = 1) -> MachineRef:
        return MachineRef(self.sandbox(), generation)

    def head(self, *, ref: MachineRef | None = None, is_pty: bool = False) -> JournalHead:
        return JournalHead(session_id=self.session(), process_id=self.process(), ref=ref or self.ref(), is_pty=is_pty)


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.fixture
def journals(tmp_path: Path) -> JournalFolder:
    folder = JournalFolder(tmp_path / "journals", limit_bytes=4 << 30)
    folder.load()
    return folder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[World]:
    made = World.in_memory(tmp_path)
    yield made
    made.close()
