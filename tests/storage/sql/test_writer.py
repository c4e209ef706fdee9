"""The writer thread: grouping, isolation of jobs, and what happens when a commit fails."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from space.core.errors import Conflict, Unavailable
from space.host import failpoint
from space.storage.sql.writer import Tx, Writer

pytestmark = pytest.mark.anyio


class Bench:
    """A writer on a table of numbers, and what it told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements: list[str] = []
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
        connection.set_trace_callback(self.statements.append)
        self.topics: list[str] = []
        self.writer = Writer(connection, path, on_commit=self.topics.extend)
        self.writer.start()

    async def add(self, number: int) -> int:
        return await self.writer.run(lambda tx: insert(tx, number))

    def stored(self) -> list[int]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute("SELECT n FROM numbers ORDER BY n")]

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep the writer busy, so that what is handed in meanwhile makes one group."""
        begun, go_on = threading.Event(), threading.Event()

        def hold(_tx: Tx) -> None:
            begun.set()
            go_on.wait(10)

        holding = asyncio.create_task(self.writer.run(hold))
        await asyncio.to_thread(begun.wait, 10)
        yield
        go_on.set()
        await holding


def insert(tx: Tx, number: int) -> int:
    tx.execute("INSERT INTO numbers VALUES (?)", (number,))
    tx.touch(str(number))
    return number


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "numbers.db")
    yield bench
    await bench.writer.aclose()


async def grouped(bench: Bench, *jobs: Any) -> list[Any]:
    """Run jobs in one group; returns results and errors."""
    async with bench.held():
        tasks = [asyncio.create_task(bench.writer.run(job)) for job in jobs]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def inserting(number: int) -> Any:
    return lambda tx: insert(tx, number)


async def test_what_waits_is_committed_together(bench: Bench) -> None:
    results = await grouped(bench, *(inserting(n) for n in range(20)))
    assert results == list(range(20))
    assert bench.statements.count("COMMIT") == 2  # the job that held the writer, and all others
    assert bench.stored() == list(range(20))


async def test_a_group_is_bounded(bench: Bench) -> None:
    await grouped(bench, *(inserting(n) for n in range(300)))
    assert bench.statements.count("COMMIT") == 4  # 1 + ceil(300 / 128)


async def test_a_job_that_raises_is_undone_alone(bench: Bench) -> None:
    def failing(tx: Tx) -> None:
        insert(tx, 2)
        raise Conflict("no")

    one, two, three = await grouped(bench, inserting(1), failing, inserting(3))
    assert (one, three) == (1, 3)
    assert isinstance(two, Conflict)
    assert bench.stored() == [1, 3]
    assert bench.topics == ["1", "3"]


async def test_a_job_that_breaks_a_constraint_is_undone_alone(bench: Bench) -> None:
    results = await grouped(bench, inserting(1), inserting(1), inserting(2))
    assert (results[0], results[2]) == (1, 2)
    assert isinstance(results[1], Exception)
    assert bench.stored() == [1, 2]


async def test_callers_hear_only_after_the_commit(bench: Bench) -> None:
    await bench.add(7)
    assert bench.statements[-1] == "COMMIT"
    assert bench.stored() == [7]


async def test_a_commit_that_fails_undoes_the_whole_group_and_every_caller_hears(bench: Bench) -> None:
    failpoint.arm("store.before_commit:error:2")
    try:
        results = await grouped(bench, inserting(1), inserting(2))
    finally:
        failpoint.arm("")
    assert [type(result) for result in results] == [failpoint.FailpointError] * 2
    assert bench.stored() == []
    assert bench.topics == []
    assert await bench.add(3) == 3  # and it goes on
    assert bench.stored() == [3]


async def test_a_job_that_leaves_the_transaction_fails_its_whole_group(bench: Bench) -> None:
    """As SQLite does by itself on some errors: nobody is told of a success that was rolled back."""

    def leaving(tx: Tx) -> None:
        tx.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    results = await grouped(bench, inserting(1), leaving, inserting(2))
    assert all(isinstance(result, Exception) for result in results)
    assert bench.stored() == []
    assert await bench.add(3) == 3


async def test_a_cancelled_caller_costs_the_others_nothing(bench: Bench) -> None:
    async with bench.held():
        cancelled = asyncio.create_task(bench.add(1))
        kept = asyncio.create_task(bench.add(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.sleep(0)
    assert await kept == 2
    assert cancelled.cancelled()
    assert bench.stored() == [2]


async def test_closing_finishes_what_was_handed_in_and_refuses_more(bench: Bench) -> None:
    tasks = [asyncio.create_task(bench.add(n)) for n in range(10)]
    await asyncio.sleep(0)
    await bench.writer.aclose()
    assert await asyncio.gather(*tasks) == list(range(10))
    with pytest.raises(Unavailable):
        await bench.add(11)
    assert bench.stored() == list(range(10))
    await bench.writer.aclose()


async def test_a_database_locked_by_another_program_is_unavailable_for_a_while(bench: Bench) -> None:
    with contextlib.closing(sqlite3.connect(bench.path, isolation_level=None)) as other:
        await bench.writer.run(lambda tx: tx.execute("PRAGMA busy_timeout = 100") and None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked") as caught:
            await bench.add(1)
        assert caught.value.retryable
        other.execute("ROLLBACK")
    assert await bench.add(1) == 1
    assert bench.stored() == [1]
