"""A fake guest is saved and goes on as a real one does: the same files, processes, output and identity."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.testing.test_guest import TOKEN, Node, connected

from space.core.errors import FailedPrecondition, GuestUnreachable, InvalidRequest, NotFound
from space.node.guest import Guest
from space.testing.guest import FakeGuest

pytestmark = pytest.mark.anyio


@pytest.fixture
async def guests() -> AsyncIterator[list[FakeGuest]]:
    """Fake guests that end with the test; the first one exists."""
    made = [FakeGuest(token=TOKEN)]
    yield made
    for each in made:
        await each.aclose()


async def until(is_so) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def content(data: bytes):
    yield data


async def test_a_counting_process_goes_on_where_it_was_without_losing_or_doubling_a_line(guests) -> None:
    node = Node()
    async with connected(guests[0], node):
        counter = await node.start("sh", "-c", "for i in $(seq 1 60); do echo $i; sleep 0.01; done; exit 5")
        await until(lambda: len(node.text(counter).split()) > 20)
    seen = node.text(counter)
    guests.append(FakeGuest.load(guests[0].save()))
    await guests[0].aclose()
    async with connected(guests[1], node) as guest:
        await guest.attach(counter, offsets={"stdout": len(seen)})
        exited = await asyncio.wait_for(node.exits[counter], 20)
    assert exited.exit_code == 5
    assert node.text(counter).split() == [str(number).encode() for number in range(1, 61)]


async def test_what_it_had_read_and_what_waits_to_be_read_is_kept(guests) -> None:
    node = Node()
    async with connected(guests[0], node) as guest:
        cat = await node.start("cat", stdin=True)
        await guest.write_stdin(cat, b"before ")
        await until(lambda: node.text(cat) == b"before ")
    guests.append(FakeGuest.load(guests[0].save()))
    async with connected(guests[1], node) as guest:
        await guest.attach(cat, offsets={"stdout": 7})
        await guest.write_stdin(cat, b"after")
        await guest.close_stdin(cat)
        assert (await asyncio.wait_for(node.exits[cat], 20)).exit_code == 0
    assert node.text(cat) == b"before after"


async def test_output_and_ends_that_nobody_acknowledged_are_kept(guests) -> None:
    node = Node()
    async with connected(guests[0], node):
        said = await node.start("echo", "hello")
        await asyncio.wait_for(node.exits[said], 20)
    late = await started_unseen(guests[0], "sh", "-c", "echo unseen; exit 3")
    guests.append(FakeGuest.load(guests[0].save()))
    node = Node()
    node.exits[late] = asyncio.Future()
    async with connected(guests[1], node) as guest:
        statuses = {each.process_id: each for each in await guest.processes()}
        assert statuses[said].exit_code == 0
        await guest.attach(late, offsets={})
        assert (await asyncio.wait_for(node.exits[late], 20)).exit_code == 3
    assert node.text(late) == b"unseen\n"


async def started_unseen(fake: FakeGuest, *argv: str) -> str:
    """Start a process and hang up before anything of it is delivered."""
    node = Node()
    node.numbers = iter(range(500, 600))
    gate = asyncio.Event()

    async def stuck(event: object) -> None:
        await gate.wait()

    node.deliver = stuck  # type: ignore[method-assign, assignment]
    async with connected(fake, node):
        process_id = await node.start(*argv)
        await asyncio.sleep(0.05)
    return process_id


async def test_files_environment_and_names_are_kept_and_copies_part_ways(guests) -> None:
    node = Node()
    async with connected(guests[0], node) as guest:
        await guest.write_file("/home/user/kept", content(b"\0\xff"), mode=0o600)
        await guest.personalise(hostname="first", env={"A": "1"})
        before = await guest.stat_file("/home/user/kept")
    state = guests[0].save()
    guests += [FakeGuest.load(state), FakeGuest.load(state)]
    seen = []
    for number, each in enumerate(guests[1:]):
        node = Node()
        async with connected(each, node) as guest:
            assert await guest.stat_file("/home/user/kept") == before
            assert await node.run("cat", "/etc/hostname") == (0, b"first\n", b"")
            assert b"A=1\n" in (await node.run("env"))[1]
            await guest.personalise(hostname=f"fork-{number}")
            seen.append((await node.run("cat", "/etc/hostname", "/etc/machine-id"))[1])
            await guest.remove_file("/home/user/kept")
    assert len(set(seen)) == 2
    assert guests[0].files.content("/home/user/kept") == b"\0\xff"


async def test_a_fork_gives_up_the_processes_that_it_came_with(guests) -> None:
    node = Node()
    async with connected(guests[0], node):
        running = await node.start("sh", "-c", "for i in $(seq 1 100000); do echo $i; done")
        await until(lambda: node.text(running))
    guests.append(FakeGuest.load(guests[0].save()))
    async with connected(guests[1], node) as guest:
        await guest.personalise(disown=True)
        assert await guest.processes() == []
        with pytest.raises(NotFound):
            await guest.attach(running, offsets={})
        with pytest.raises(NotFound):
            await guest.signal(running, "SIGKILL")
        assert (await node.run("echo", "mine"))[1] == b"mine\n"
    guests.append(FakeGuest.load(guests[1].save()))


async def test_it_takes_leave_and_rehearses_as_the_real_one_does(guests) -> None:
    node = Node()
    async with connected(guests[0], node) as guest:
        await guest.prewarm()
        await guest.quiesce()
        with pytest.raises(GuestUnreachable):
            await guest.ping()
    async with connected(guests[0], node) as guest:
        assert await guest.ping() < 5


async def test_a_new_token_or_name_is_checked_and_then_the_only_one(guests) -> None:
    node = Node()
    async with connected(guests[0], node) as guest:
        for wrong in ({"token": "short"}, {"hostname": "no name"}):
            with pytest.raises(InvalidRequest):
                await guest.personalise(**wrong)
        await guest.personalise(token="a token that is long enough")
    with contextlib.suppress(GuestUnreachable):
        await Guest.open(await guests[0].connect(), token=TOKEN, deliver=node.deliver)
        pytest.fail("the old token opened it")


async def test_one_that_was_told_too_much_says_that_it_cannot_be_saved(guests) -> None:
    node = Node()
    async with connected(guests[0], node) as guest:
        swallowing = await node.start("sh", stdin=True)
        for _ in range(5):
            await guest.write_stdin(swallowing, bytes(1 << 20))
        with pytest.raises(FailedPrecondition, match="read too much"):
            guests[0].save()
