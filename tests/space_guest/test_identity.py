"""Becoming another machine: what the agent checks, changes and leaves alone."""

import asyncio
import os
import random
import socket
from pathlib import Path

import pytest

from space.core.errors import GuestUnreachable, InvalidRequest, NotFound
from space.node.guest import Guest
from space_guest import machine
from space_guest.identity import Identity
from space_guest.request import Refused

from .conftest import TOKEN, Session

pytestmark = pytest.mark.anyio


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the kernel was given, instead of this host."""
    names = ["before"]
    monkeypatch.setattr(socket, "sethostname", names.append)
    monkeypatch.setattr(socket, "gethostname", lambda: names[-1])
    return names


@pytest.fixture
def identity(tmp_path: Path, named: list[str]) -> Identity:
    return Identity(str(tmp_path), is_first_process=True)


def test_a_name_is_written_where_programs_look_for_it(identity: Identity, named: list[str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost me\n192.0.2.1 mine\n127.0.1.1 before\n")
    identity.apply({"hostname": "after"})
    assert named == ["before", "after"]
    assert (tmp_path / "hostname").read_text() == "after\n"
    assert (tmp_path / "hosts").read_text() == "127.0.0.1 localhost me\n192.0.2.1 mine\n127.0.1.1\tafter\n"
    machine_id = (tmp_path / "machine-id").read_text()
    assert len(bytes.fromhex(machine_id)) == 16
    identity.apply({"hostname": "again"})
    assert (tmp_path / "machine-id").read_text() != machine_id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostname", "hosts", "machine-id"]


def test_a_root_without_these_files_gets_them(identity: Identity, tmp_path: Path) -> None:
    identity.write_files()
    assert (tmp_path / "hosts").read_text() == "127.0.0.1\tlocalhost\n127.0.1.1\tbefore\n"


def test_a_root_without_etc_is_left_alone(named: list[str], tmp_path: Path) -> None:
    Identity(str(tmp_path / "missing"), is_first_process=True).apply({"hostname": "after"})
    assert named[-1] == "after"


def test_what_the_guest_put_there_is_neither_followed_nor_waited_for(identity: Identity, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("the guest's")
    (tmp_path / "hostname").symlink_to(target)
    os.mkfifo(tmp_path / "hosts")
    (tmp_path / "machine-id").mkdir()
    identity.apply({"hostname": "after"})
    assert target.read_text() == "the guest's"
    assert (tmp_path / "hostname").read_text() == "after\n"
    assert (tmp_path / "machine-id").is_dir()


def test_a_hosts_file_without_end_is_left_alone(identity: Identity, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("x" * 100_000)
    identity.apply({"hostname": "after"})
    assert (tmp_path / "hosts").stat().st_size == 100_000


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "a b", "a..b", "ü", "a" * 64, "a." * 40 + "a", "a\n", "a/b", 7, ["a"]]
)
def test_what_is_no_host_name_is_refused(identity: Identity, name: object) -> None:
    with pytest.raises(Refused):
        identity.check({"hostname": name})


@pytest.mark.parametrize("name", ["a", "brave-otter", "sbx0f3", "a.b-c.d", "a" * 63])
def test_host_names_are_accepted(identity: Identity, name: str) -> None:
    identity.check({"hostname": name})


def test_a_kernel_that_forbids_the_name_changes_nothing(
    identity: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(name: str) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(socket, "sethostname", forbidden)
    with pytest.raises(Refused) as caught:
        identity.apply({"hostname": "after"})
    assert caught.value.code == "unsupported"
    assert list(tmp_path.iterdir()) == []


def test_entropy_reaches_the_agents_own_generator(identity: Identity) -> None:
    state = random.getstate()
    identity.apply({"hex": "00" * 32})
    assert random.getstate() != state


def test_an_agent_that_is_not_the_first_process_leaves_its_host_alone(named: list[str], tmp_path: Path) -> None:
    """As in tests, where it is a process of the machine that the tests run on."""
    identity = Identity(str(tmp_path), is_first_process=False)
    identity.apply({"hostname": "after", "unix_seconds": 1.0, "hex": "00"})
    assert named == ["before"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Refused, match="clock"):
        machine.set_clock({"unix_seconds": 1.0})


# The whole agent


@pytest.mark.live
async def test_what_cannot_be_right_changes_nothing(session: Session) -> None:
    boot_id = session.guest.boot_id
    for wrong in ({"hostname": "a b"}, {"token": "short"}, {"entropy": b""}, {"unix_seconds": -1.0}):
        good = {"hostname": "good", "env": {"A": "1"}, "token": "a token that is long enough", "disown": True}
        with pytest.raises(InvalidRequest):
            await session.guest.personalise(**{**good, **wrong})
    assert session.guest.boot_id == boot_id
    _, stdout, _ = await session.run("env")
    assert b"A=1" not in stdout


@pytest.mark.live
async def test_disowned_processes_run_on_and_are_nobodys(session: Session, tmp_path: Path) -> None:
    counting = f"i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); echo $i; done; echo done >{tmp_path}/counted; exit 3"
    counter = await session.start("sh", "-c", counting)
    terminal = await session.start("sh", "-c", f"cat; echo end >{tmp_path}/terminal", pty=_pty())
    reader = await session.start("sh", "-c", f"cat; echo closed >{tmp_path}/reader", stdin=True)
    ended = await session.start("true")
    await session.recorder.exit(ended)
    session.recorder.gate.clear()
    await session.guest.personalise(disown=True)
    assert await session.guest.processes() == []
    for gone in (counter, terminal, reader, ended):
        with pytest.raises(NotFound):
            await session.guest.attach(gone, offsets={})
    session.recorder.gate.set()
    async with asyncio.timeout(60):
        while not (tmp_path / "counted").exists():  # noqa: ASYNC110 - 2.7 MB that nobody acknowledges
            await asyncio.sleep(0.05)
    assert not (tmp_path / "reader").exists()  # its stdin has not ended
    assert not (tmp_path / "terminal").exists()
    again = await session.start("sh", "-c", "echo mine")
    await session.recorder.exit(again)
    assert session.recorder.text(again) == b"mine\n"
    assert [each.process_id for each in await session.guest.processes()] == [again]
    assert not {counter, terminal, reader} & set(session.recorder.exits)


@pytest.mark.live
async def test_disowned_processes_leave_no_descriptor_behind(session: Session) -> None:
    await session.run("true")
    folder = Path(f"/proc/{session.agent.process.pid}/fd")
    before = len(list(folder.iterdir()))
    for _ in range(20):
        await session.start("sh", "-c", "sleep 0.2; echo x", stdin=True)
        await session.start("sleep", "0.2", pty=_pty())
    await session.guest.personalise(disown=True)
    async with asyncio.timeout(30):
        while len(list(folder.iterdir())) > before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.live
async def test_taking_leave_ends_the_connection_from_the_agents_side(session: Session) -> None:
    silent = await session.agent.connect()
    running = await session.start("sleep", "60")
    await session.guest.quiesce()
    with pytest.raises(GuestUnreachable):
        await session.guest.ping()
    assert await silent.receive() == b""
    async with session.connected() as guest:
        await guest.attach(running, offsets={})
        await guest.signal(running, "SIGKILL")
        await session.recorder.exit(running)


@pytest.mark.live
async def test_a_stranger_who_knows_the_old_token_is_sent_away(session: Session) -> None:
    waiting = await session.agent.connect()
    await asyncio.sleep(0.1)
    await session.guest.personalise(token="a token that is long enough")
    with pytest.raises(GuestUnreachable):
        await Guest.open(waiting, token=TOKEN, deliver=session.recorder.deliver)


@pytest.mark.live
async def test_a_rehearsal_leaves_nothing_behind(session: Session) -> None:
    for _ in range(3):
        await session.guest.prewarm()
    assert await session.guest.processes() == []
    exited, stdout, _ = await session.run("echo", "quick")
    assert (exited.exit_code, stdout) == (0, b"quick\n")


def _pty() -> object:
    from space.core.command import Pty

    return Pty(cols=80, rows=24)
