import asyncio
import contextlib
import hashlib
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.errors import FailedPrecondition, InsufficientStorage, InvalidRequest, NotFound, PermissionDenied
from space.core.file import FileType

pytestmark = [pytest.mark.anyio, pytest.mark.live]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
SIZES = [0, 1, 4095, 18433, 131073, 1 << 20, (16 << 20) + 1]


async def source(*blocks: bytes) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block


async def blocks(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def read(guest, path, **options) -> bytes:
    async with guest.read_file(str(path), **options) as (_, chunks):
        return b"".join([chunk async for chunk in chunks])


@pytest.mark.parametrize("size", SIZES)
async def test_every_size_arrives_whole_both_ways(session, tmp_path, size):
    content = os.urandom(size)
    path = tmp_path / "new" / "folder" / "file"
    info = await session.guest.write_file(str(path), blocks(content, 100_000))
    assert (info.size, info.type, info.path) == (size, FileType.FILE, str(path))
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(content).digest()
    assert await read(session.guest, path) == content
    assert session.agent.resident_kib < 60_000


@pytest.mark.soak
async def test_a_large_file_arrives_whole(session, tmp_path):
    block = os.urandom(1 << 20)

    async def much() -> AsyncIterator[bytes]:
        for _ in range(256):
            yield block

    await session.guest.write_file(str(tmp_path / "large"), much())
    digest = hashlib.sha256()
    async with session.guest.read_file(str(tmp_path / "large")) as (_, chunks):
        async for chunk in chunks:
            digest.update(chunk)
    assert digest.digest() == hashlib.sha256(block * 256).digest()
    assert session.agent.resident_kib < 60_000


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, None, b"0123456789"), (3, None, b"3456789"), (3, 4, b"3456"), (8, 100, b"89"), (10, 5, b""), (99, None, b"")],
)
async def test_ranges_end_where_the_file_ends(session, tmp_path, start, length, expected):
    (tmp_path / "file").write_bytes(b"0123456789")
    assert await read(session.guest, tmp_path / "file", start=start, length=length) == expected


async def test_files_of_the_kernel_are_read_although_they_say_to_be_empty(session):
    async with session.guest.read_file("/proc/self/status") as (info, chunks):
        content = b"".join([chunk async for chunk in chunks])
    assert content.startswith(b"Name:")
    assert info.size == len(content)


async def test_a_write_that_breaks_off_leaves_the_file_as_it_was(session, tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half of it"
        raise ConnectionResetError("the client is gone")

    with pytest.raises(ConnectionResetError):
        await session.guest.write_file(str(path), breaks())
    await session.guest.ping()
    assert path.read_text() == "before"
    await _until(lambda: [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".space-")] == [])


async def test_a_connection_that_breaks_leaves_the_file_as_it_was(session, tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    started = asyncio.Event()

    async def hangs() -> AsyncIterator[bytes]:
        yield b"half of it"
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(session.guest.write_file(str(path), hangs()))
    await started.wait()
    await session.guest.aclose()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await _until(lambda: sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "log", "token"])
    assert path.read_text() == "before"


async def test_mode_and_owner_are_kept_or_as_asked(session, tmp_path):
    path = tmp_path / "file"
    assert (await session.guest.write_file(str(path), source(b"x"))).mode == 0o644
    path.chmod(0o711)
    assert (await session.guest.write_file(str(path), source(b"y"))).mode == 0o711
    assert (await session.guest.write_file(str(path), source(b"z"), mode=0o600)).mode == 0o600


@needs_root
async def test_what_is_created_belongs_to_the_user_parents_too(session, tmp_path):
    path = tmp_path / "made" / "here" / "file"
    info = await session.guest.write_file(str(path), source(b"x"), user="daemon")
    assert (info.user, info.group) == ("daemon", "daemon")
    assert [folder.stat().st_uid for folder in (path.parent, path.parent.parent)] == [1, 1]
    assert (await session.guest.write_file(str(path), source(b"again"))).user == "daemon"


async def test_the_etag_changes_with_the_content(session, tmp_path):
    path = str(tmp_path / "file")
    etags = [(await session.guest.write_file(path, source(b"x"))).etag for _ in range(3)]
    assert len(set(etags)) == 3
    assert (await session.guest.stat_file(path)).etag == etags[-1]


@needs_root
async def test_a_full_disk_is_an_error_and_leaves_nothing(session, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    try:
        (disk / "file").write_text("before")
        with pytest.raises(InsufficientStorage):
            await session.guest.write_file(str(disk / "file"), source(bytes(3 << 20)))
        assert (disk / "file").read_text() == "before"
        await _until(lambda: [entry.name for entry in disk.iterdir()] == ["file"])
        await session.guest.write_file(str(disk / "fits"), source(b"x"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_what_cannot_be_written_is_an_error(session, tmp_path):
    (tmp_path / "file").write_text("x")
    guest = session.guest
    with pytest.raises((PermissionDenied, NotFound)):
        await guest.write_file("/proc/nope", source(b"x"))
    with pytest.raises(FailedPrecondition):
        await guest.write_file(str(tmp_path), source(b"x"))
    with pytest.raises(FailedPrecondition):
        await guest.write_file(str(tmp_path / "file" / "below"), source(b"x"))
    with pytest.raises(FailedPrecondition):
        await guest.write_file("/dev/null", source(b"x"))
    with pytest.raises(InvalidRequest):
        await guest.write_file(str(tmp_path / "new"), source(b"x"), user="no-such-user")
    assert not (tmp_path / "new").exists()


async def test_what_cannot_be_read_is_an_error(session, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path, error in (("nope", NotFound), ("", FailedPrecondition), ("fifo", FailedPrecondition)):
        with pytest.raises(error):
            await read(session.guest, f"{tmp_path}/{path}")


@pytest.mark.parametrize("path", ["relative", "", "/a/../etc/passwd", "/a\0b", "/\ud800", "/" + "a" * 300, "/a" * 3000])
async def test_paths_that_no_file_can_have_are_refused(session, path):
    guest = session.guest
    for call in (
        guest.stat_file(path),
        guest.list_files(path),
        guest.remove_file(path),
        guest.make_directory(path),
        guest.move_file(path, "/tmp/x"),
        guest.move_file("/tmp/x", path),
        guest.write_file(path, source(b"x")),
        guest.write_archive(path, source(b"x")),
    ):
        with pytest.raises(InvalidRequest):
            await call


async def test_links_are_shown_as_links_and_written_through(session, tmp_path):
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to("target")
    info = await session.guest.stat_file(str(tmp_path / "link"))
    assert (info.type, info.target) == (FileType.SYMLINK, "target")
    await session.guest.write_file(str(tmp_path / "link"), source(b"after"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "after"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FailedPrecondition):
        await read(session.guest, tmp_path / "loop")


async def test_removing_a_link_leaves_its_target(session, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "kept")
    await session.guest.remove_file(str(tmp_path / "folder"), recursive=True)
    assert (tmp_path / "kept" / "file").exists()
    assert not (tmp_path / "folder").exists()


async def test_a_directory_is_listed_in_order_to_its_depth_and_limit(session, tmp_path):
    root = tmp_path / "root"
    for name in ("b/c/d", "a", "b/a"):
        (root / name).mkdir(parents=True)
    (root / "a.txt").write_text("x")
    (root / "link").symlink_to("b")

    async def names(**options) -> list[str]:
        return [info.path[len(str(root)) + 1 :] for info in await session.guest.list_files(str(root), **options)]

    assert await names() == ["a", "a.txt", "b", "link"]
    assert await names(depth=2) == ["a", "a.txt", "b", "b/a", "b/c", "link"]
    assert await names(depth=9, limit=3) == ["a", "a.txt", "b"]
    with pytest.raises(FailedPrecondition):
        await session.guest.list_files(str(root / "a.txt"))


async def test_ten_thousand_files_are_listed(session, tmp_path):
    root = tmp_path / "many"
    root.mkdir()
    for number in range(10_000):
        (root / f"{number:05d}").touch()
    found = await session.guest.list_files(str(root), limit=10_000)
    assert [Path(info.path).name for info in found] == [f"{number:05d}" for number in range(10_000)]


async def test_names_that_are_not_utf8_are_shown_and_break_nothing(session, tmp_path):
    root = tmp_path / "odd"
    root.mkdir()
    os.mkdir(os.fsencode(root) + b"/\xff\xfe")  # noqa: PTH102 - no name that a Path can hold
    (root / "new\nline").touch()
    found = [info.path.rpartition("/")[2] for info in await session.guest.list_files(str(root))]
    assert found == ["new\nline", "\ufffd\ufffd"]


async def test_moves_rename_and_cross_filesystems(session, tmp_path):
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("x")
    info = await session.guest.move_file(str(tmp_path / "tree"), str(tmp_path / "other"))
    assert info.type is FileType.DIRECTORY
    shm = Path(f"/dev/shm/space-test-{os.getpid()}")
    await session.guest.move_file(str(tmp_path / "other"), str(shm))
    assert (shm / "sub" / "file").read_text() == "x"
    assert not (tmp_path / "other").exists()
    await session.guest.move_file(str(shm), str(tmp_path / "back"))
    assert (tmp_path / "back" / "sub" / "file").read_text() == "x"
    with pytest.raises(NotFound):
        await session.guest.move_file(str(tmp_path / "nope"), str(tmp_path / "x"))


async def test_directories_are_made_with_parents_and_again(session, tmp_path):
    path = tmp_path / "a" / "b"
    info = await session.guest.make_directory(str(path), mode=0o700)
    assert (info.type, info.mode) == (FileType.DIRECTORY, 0o700)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    await session.guest.make_directory(str(path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(FailedPrecondition):
        await session.guest.make_directory(str(tmp_path / "file"))


async def test_a_full_directory_is_removed_only_when_asked_to(session, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(FailedPrecondition):
        await session.guest.remove_file(str(tmp_path / "a"))
    await session.guest.remove_file(str(tmp_path / "a"), recursive=True)
    with pytest.raises(NotFound):
        await session.guest.remove_file(str(tmp_path / "a"))
    with pytest.raises(FailedPrecondition):
        await session.guest.remove_file("/", recursive=True)


async def test_a_reader_that_stops_early_stops_the_agent_too(session, tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    async with session.guest.read_file(str(tmp_path / "large")) as (_, chunks):
        assert await anext(chunks)
    assert session.agent.resident_kib < 60_000
    assert await session.guest.ping() < 5


async def test_many_transfers_at_once_do_not_mix(session, tmp_path):
    contents = [os.urandom(300_000 + number) for number in range(20)]
    paths = [str(tmp_path / f"file{number}") for number in range(20)]
    await asyncio.gather(
        *(session.guest.write_file(path, blocks(data, 50_000)) for path, data in zip(paths, contents, strict=True))
    )
    assert await asyncio.gather(*(read(session.guest, path) for path in paths)) == contents


async def test_changes_are_watched_new_directories_included(session, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    seen: list[tuple[str, str]] = []
    ready = asyncio.Event()

    async def watch() -> None:
        async with contextlib.aclosing(session.guest.watch_files(str(root), recursive=True)) as events:
            pending = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.3)
            ready.set()
            while True:
                event = await pending
                seen.append((event.kind, event.path[len(str(root)) :]))
                pending = asyncio.ensure_future(anext(events))
                if event.path.endswith("/last"):
                    pending.cancel()
                    return

    task = asyncio.create_task(watch())
    await ready.wait()
    (root / "sub" / "deep").mkdir(parents=True)
    await asyncio.sleep(0.2)
    await session.guest.write_file(str(root / "sub" / "deep" / "file"), source(b"x"))
    (root / "sub" / "deep" / "file").rename(root / "moved")
    (root / "moved").unlink()
    (root / "last").touch()
    await asyncio.wait_for(task, 20)
    assert ("created", "/sub") in seen
    assert ("created", "/sub/deep/file") in seen
    assert ("moved", "/sub/deep/file") in seen
    assert ("removed", "/moved") in seen
    assert not any("/.space-" in path for _, path in seen)


async def test_a_watch_of_nothing_is_refused_and_one_ends_with_its_path(session, tmp_path):
    with pytest.raises(NotFound):
        await anext(session.guest.watch_files(str(tmp_path / "nope")))
    (tmp_path / "here").mkdir()

    async def watch() -> list[str]:
        return [event.kind async for event in session.guest.watch_files(str(tmp_path / "here"))]

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.3)
    (tmp_path / "here").rmdir()
    assert await asyncio.wait_for(task, 20) == ["removed"]


async def test_statistics_and_identity(session):
    stats = await session.guest.stats()
    assert {"cpu_seconds", "memory_bytes", "memory_total_bytes", "disk_bytes", "disk_total_bytes", "pids"} <= set(stats)
    with pytest.raises(InvalidRequest):
        await session.guest.personalise(hostname="not a host name")
    with pytest.raises(InvalidRequest):
        await session.guest.personalise(token="short")
    await session.guest.personalise(env={"FROM": "personalise"})
    _, stdout, _ = await session.run("env")
    assert b"FROM=personalise\n" in stdout
    await session.guest.add_entropy(os.urandom(256))


async def _until(is_so) -> None:
    for _ in range(100):
        if is_so():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come about")
