import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from space.core.errors import FailedPrecondition, InvalidRequest, NotFound

pytestmark = [pytest.mark.anyio, pytest.mark.live]


async def source(data: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def entry(name: str, **fields) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


async def test_a_tree_survives_the_way_out_and_in(session, tmp_path):
    root = tmp_path / "root"
    (root / "empty").mkdir(parents=True)
    (root / "sub").mkdir()
    (root / "sub" / "file").write_bytes(os.urandom(3_000_000))
    (root / "sub" / "file").chmod(0o751)
    (root / "link").symlink_to("sub/file")
    (root / "näme").write_text("x")
    os.mkfifo(root / "fifo")
    async with session.guest.read_archive(str(root)) as chunks:
        data = b"".join([chunk async for chunk in chunks])
    counts = await session.guest.write_archive(str(tmp_path / "copy"), source(data))
    assert counts == {"files": 3, "bytes": 3_000_001}
    copy = tmp_path / "copy"
    assert (copy / "sub" / "file").read_bytes() == (root / "sub" / "file").read_bytes()
    assert (copy / "sub" / "file").stat().st_mode & 0o777 == 0o751
    assert (copy / "link").readlink() == Path("sub/file")
    assert sorted(path.name for path in copy.iterdir()) == ["empty", "link", "näme", "sub"]


@pytest.mark.parametrize(
    "member",
    [
        entry("../outside"),
        entry("a/../../outside"),
        entry("/absolute"),
        entry("link", type=tarfile.SYMTYPE, linkname="/etc"),
        entry("link", type=tarfile.SYMTYPE, linkname="../outside"),
        entry("a/link", type=tarfile.SYMTYPE, linkname="../../outside"),
        entry("link", type=tarfile.LNKTYPE, linkname="../outside"),
        entry("link", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        entry("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("pipe", type=tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.linkname}-{member.type.decode()}",
)
async def test_an_archive_cannot_reach_outside(session, tmp_path, member):
    (tmp_path / "outside").write_text("before")
    with pytest.raises(InvalidRequest):
        await session.guest.write_archive(str(tmp_path / "in"), source(tar((member, b""))))
    assert (tmp_path / "outside").read_text() == "before"
    assert list((tmp_path / "in").rglob("*")) in ([], [tmp_path / "in" / "a"])


async def test_an_entry_below_a_link_is_refused(session, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "planted").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidRequest):
        await session.guest.write_archive(str(tmp_path / "in"), source(tar((entry("planted/file"), b"x"))))
    inside = tar((entry("l", type=tarfile.SYMTYPE, linkname="d"), b""), (entry("l/file"), b"x"))
    with pytest.raises(InvalidRequest):
        await session.guest.write_archive(str(tmp_path / "in"), source(inside))
    assert list((tmp_path / "outside").iterdir()) == []


async def test_a_link_that_is_there_is_replaced_not_followed(session, tmp_path):
    (tmp_path / "outside").write_text("before")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").symlink_to(tmp_path / "outside")
    await session.guest.write_archive(str(tmp_path / "in"), source(tar((entry("file"), b"after"))))
    assert (tmp_path / "outside").read_text() == "before"
    assert (tmp_path / "in" / "file").read_text() == "after"


async def test_hard_links_inside_are_made(session, tmp_path):
    data = tar((entry("a"), b"x"), (entry("sub/b", type=tarfile.LNKTYPE, linkname="a"), b""))
    await session.guest.write_archive(str(tmp_path / "in"), source(data))
    assert (tmp_path / "in" / "sub" / "b").stat().st_ino == (tmp_path / "in" / "a").stat().st_ino


async def test_setuid_is_not_taken_over(session, tmp_path):
    await session.guest.write_archive(str(tmp_path / "in"), source(tar((entry("file", mode=0o6755), b"x"))))
    assert (tmp_path / "in" / "file").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("cut", [100, 700, 1200])
async def test_half_an_archive_is_an_error(session, tmp_path, cut):
    data = tar((entry("file"), bytes(3000)))
    with pytest.raises(InvalidRequest):
        await session.guest.write_archive(str(tmp_path / "in"), source(data[:cut]))


async def test_nonsense_is_no_archive(session, tmp_path):
    with pytest.raises(InvalidRequest):
        await session.guest.write_archive(str(tmp_path / "in"), source(os.urandom(5000)))


async def test_headers_without_end_do_not_fill_the_memory(session, tmp_path):
    header = entry("x", type=tarfile.GNUTYPE_LONGNAME, size=1 << 30).tobuf(tarfile.GNU_FORMAT)

    async def endless() -> AsyncIterator[bytes]:
        yield header
        for _ in range(100):
            yield bytes(1 << 20)

    with pytest.raises(InvalidRequest, match="too long"):
        await session.guest.write_archive(str(tmp_path / "in"), endless())
    assert session.agent.resident_kib < 60_000


async def test_archives_of_what_is_no_directory_are_refused(session, tmp_path):
    (tmp_path / "file").write_text("x")
    for path, error in (("file", FailedPrecondition), ("nope", NotFound)):
        with pytest.raises(error):
            async with session.guest.read_archive(str(tmp_path / path)):
                pass
