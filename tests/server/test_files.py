"""Files through the API, with real guest agents."""

import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest
from tests.server.harness import Server, sse_events, whole_server
from tests.server.test_error_shape import shape_of

pytestmark = [pytest.mark.anyio, pytest.mark.live]


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with whole_server(tmp_path_factory.mktemp("files")) as made:
        yield made


@pytest.fixture(scope="module")
async def sandbox(place: Server) -> str:
    async with place.client() as client:
        return await place.sandbox(client)


@pytest.fixture
async def files(place: Server, sandbox: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose paths begin at the sandbox."""
    async with place.client() as client:
        client.base_url = httpx.URL(f"{place.api_url}/v1/sandboxes/{sandbox}")
        yield client


@pytest.fixture
def guest(tmp_path: Path) -> str:
    """A directory that the guest sees too: its machine is a process of this host."""
    return str(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 4095, 18_433, 131_073, 1 << 20, (16 << 20) + 1])
async def test_what_was_written_is_read(files: httpx.AsyncClient, guest: str, size: int) -> None:
    """Case 15 of the reported faults; its 256 MiB are the soak test's."""
    data = os.urandom(size)
    path = f"{guest}/deep/er/file.bin"
    put = await files.put("/files", params={"path": path}, content=data)
    assert put.status_code == 200, put.text
    assert put.json()["size"] == size
    got = await files.get("/files", params={"path": path})
    assert hashlib.sha256(got.content).digest() == hashlib.sha256(data).digest()
    assert got.headers["content-length"] == str(size)


async def test_a_download_is_never_a_page(files: httpx.AsyncClient, guest: str) -> None:
    await files.put("/files", params={"path": f"{guest}/x.html"}, content=b"<script>alert(1)</script>")
    answer = await files.get("/files", params={"path": f"{guest}/x.html"})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment"


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=2-5", 2, 6), ("bytes=7-", 7, 10), ("bytes=-3", 7, 10), ("bytes=5-99", 5, 10),
     ("bytes=-99", 0, 10)],
)  # fmt: skip
async def test_a_range_is_answered(files: httpx.AsyncClient, guest: str, asked: str, start: int, end: int) -> None:
    await files.put("/files", params={"path": f"{guest}/r"}, content=b"0123456789")
    answer = await files.get("/files", params={"path": f"{guest}/r"}, headers={"Range": asked})
    assert answer.status_code == 206, answer.text
    assert answer.content == b"0123456789"[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/10"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=99-100", "bytes=-0"])
async def test_a_range_beyond_the_end_is_416_with_the_size(files: httpx.AsyncClient, guest: str, asked: str) -> None:
    await files.put("/files", params={"path": f"{guest}/r"}, content=b"0123456789")
    answer = await files.get("/files", params={"path": f"{guest}/r"}, headers={"Range": asked})
    assert shape_of(answer, 416, "invalid_request")["details"] == {"field": "Range", "size": 10}
    assert answer.headers["content-range"] == "bytes */10"


async def test_the_end_of_a_file_behind_a_link_is_its_own(files: httpx.AsyncClient, guest: str) -> None:
    data = os.urandom(5000)
    await files.put("/files", params={"path": f"{guest}/target"}, content=data)
    (Path(guest) / "link").symlink_to("target")
    answer = await files.get("/files", params={"path": f"{guest}/link"}, headers={"Range": "bytes=-100"})
    assert (answer.status_code, answer.headers["content-range"]) == (206, "bytes 4900-4999/5000")
    assert answer.content == data[-100:]


async def test_a_range_of_a_file_that_has_changed_is_the_whole_new_file(files: httpx.AsyncClient, guest: str) -> None:
    path = {"path": f"{guest}/resumed"}
    await files.put("/files", params=path, content=b"0123456789")
    etag = (await files.get("/files", params=path)).headers["etag"]
    headers = {"Range": "bytes=5-", "If-Range": etag}
    assert (await files.get("/files", params=path, headers=headers)).content == b"56789"
    await files.put("/files", params=path, content=b"another text")
    answer = await files.get("/files", params=path, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"another text")


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "lines=1-2", "bytes=5-2", "bytes=", "bytes=x-y", "", "-"])
async def test_a_range_that_is_not_one_is_ignored(files: httpx.AsyncClient, guest: str, asked: str) -> None:
    await files.put("/files", params={"path": f"{guest}/r"}, content=b"0123456789")
    answer = await files.get("/files", params={"path": f"{guest}/r"}, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


async def test_an_unchanged_file_is_not_sent_again(files: httpx.AsyncClient, guest: str) -> None:
    path = {"path": f"{guest}/e"}
    await files.put("/files", params=path, content=b"one")
    etag = (await files.get("/files", params=path)).headers["etag"]
    for header in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        same = await files.get("/files", params=path, headers={"If-None-Match": header})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    await files.put("/files", params=path, content=b"two!")
    changed = await files.get("/files", params=path, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.content) == (200, b"two!")
    assert changed.headers["etag"] != etag


async def test_a_head_tells_size_and_etag(files: httpx.AsyncClient, guest: str) -> None:
    await files.put("/files", params={"path": f"{guest}/h"}, content=b"12345")
    answer = await files.head("/files", params={"path": f"{guest}/h"})
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "5")
    assert answer.headers["etag"]
    assert (await files.head("/files", params={"path": f"{guest}/nosuch"})).status_code == 404


async def test_missing_files_and_directories_are_told_apart(files: httpx.AsyncClient, guest: str) -> None:
    for method in ("GET", "DELETE"):
        answer = await files.request(method, "/files", params={"path": f"{guest}/nosuch"})
        shape_of(answer, 404, "not_found")
    shape_of(await files.get("/files", params={"path": guest}), 409, "failed_precondition")
    shape_of(await files.put("/files", params={"path": guest}, content=b"x"), 409, "failed_precondition")
    shape_of(await files.get("/files:list", params={"path": f"{guest}/nosuch"}), 404, "not_found")
    shape_of(await files.get("/files:stat", params={"path": f"{guest}/nosuch"}), 404, "not_found")


@pytest.mark.parametrize("path", ["", "relative", "/a/../b", "/..", "/a\x00b", "/" + "x" * 5000, "/" + "é" * 3000])
async def test_a_path_that_cannot_be_is_refused(files: httpx.AsyncClient, path: str) -> None:
    for method, route in (
        ("GET", "/files"),
        ("HEAD", "/files"),
        ("PUT", "/files"),
        ("DELETE", "/files"),
        ("GET", "/files:list"),
        ("GET", "/files:stat"),
        ("GET", "/files:watch"),
        ("GET", "/files:archive"),
        ("PUT", "/files:archive"),
    ):
        answer = await files.request(method, route, params={"path": path})
        assert answer.status_code == 400, (method, route)
        if method != "HEAD":
            assert shape_of(answer, 400, "invalid_request")["details"]["field"] in ("path", "query")
    for body in ({"source": path, "target": "/x"}, {"source": "/x", "target": path}):
        shape_of(await files.post("/files:move", json=body), 400, "invalid_request")
    shape_of(await files.post("/files:mkdir", json={"path": path}), 400, "invalid_request")


async def test_directories_are_made_listed_moved_and_removed(files: httpx.AsyncClient, guest: str) -> None:
    made = await files.post("/files:mkdir", json={"path": f"{guest}/d/e", "mode": "0750"})
    assert (made.status_code, made.json()["type"], made.json()["mode"]) == (200, "directory", "0750")
    assert (await files.post("/files:mkdir", json={"path": f"{guest}/d/e"})).status_code == 200
    await files.put("/files", params={"path": f"{guest}/d/a.sh", "mode": "0755"}, content=b"#!/bin/sh\n")
    listed = (await files.get("/files:list", params={"path": f"{guest}/d"})).json()
    assert [(item["path"], item["type"]) for item in listed["items"]] == [
        (f"{guest}/d/a.sh", "file"),
        (f"{guest}/d/e", "directory"),
    ]
    assert listed["items"][0]["mode"] == "0755"
    assert not listed["truncated"]
    limited = (await files.get("/files:list", params={"path": f"{guest}/d", "limit": 1})).json()
    assert (len(limited["items"]), limited["truncated"]) == (1, True)
    moved = await files.post("/files:move", json={"source": f"{guest}/d/a.sh", "target": f"{guest}/d/e/b.sh"})
    assert moved.json()["path"] == f"{guest}/d/e/b.sh"
    deep = (await files.get("/files:list", params={"path": f"{guest}/d", "depth": 5})).json()["items"]
    assert [item["path"] for item in deep] == [f"{guest}/d/e", f"{guest}/d/e/b.sh"]
    refused = await files.delete("/files", params={"path": f"{guest}/d"})
    shape_of(refused, 409, "failed_precondition")
    removed = await files.delete("/files", params={"path": f"{guest}/d", "recursive": "true"})
    assert removed.status_code == 204
    assert not (Path(guest) / "d").exists()


async def test_a_directory_travels_as_a_tar(files: httpx.AsyncClient, guest: str) -> None:
    await files.put("/files", params={"path": f"{guest}/from/x"}, content=b"x" * 1000)
    await files.put("/files", params={"path": f"{guest}/from/sub/y"}, content=b"y")
    packed = await files.get("/files:archive", params={"path": f"{guest}/from"})
    assert packed.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        names = archive.getnames()
    assert {name.removeprefix("./") for name in names} >= {"x", "sub/y"}
    unpacked = await files.put("/files:archive", params={"path": f"{guest}/to"}, content=packed.content)
    assert unpacked.status_code == 200, unpacked.text
    assert unpacked.json() == {"files": 2, "bytes": 1001}
    assert (Path(guest) / "to/sub/y").read_bytes() == b"y"


async def test_an_archive_cannot_leave_its_directory(files: httpx.AsyncClient, guest: str) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        entry = tarfile.TarInfo("../escaped")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    answer = await files.put("/files:archive", params={"path": f"{guest}/jail"}, content=target.getvalue())
    shape_of(answer, 400, "invalid_request")
    assert not (Path(guest) / "escaped").exists()


async def test_changes_are_watched(files: httpx.AsyncClient, guest: str) -> None:
    async with files.stream("GET", "/files:watch", params={"path": guest}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = sse_events(answer)
        await anyio.sleep(0.2)
        (Path(guest) / "new.txt").write_bytes(b"x")
        with anyio.fail_after(10):
            event = await anext(events)
    assert (event.event, event.data["path"]) == ("created", f"{guest}/new.txt")


async def test_an_upload_that_breaks_off_leaves_the_old_file(files: httpx.AsyncClient, guest: str) -> None:
    path = f"{guest}/kept"
    await files.put("/files", params={"path": path}, content=b"old")

    async def breaking() -> AsyncIterator[bytes]:
        yield b"new" * 100_000
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await files.put("/files", params={"path": path}, content=breaking())
    await anyio.sleep(0.3)
    assert (Path(guest) / "kept").read_bytes() == b"old"
    assert [entry.name for entry in Path(guest).iterdir()] == ["kept"]


async def test_writing_and_reading_need_their_own_scopes(place: Server, sandbox: str, guest: str) -> None:
    path = {"path": f"{guest}/s"}
    async with place.client(await place.token("files:read")) as reader:
        shape_of(await reader.put(f"/v1/sandboxes/{sandbox}/files", params=path, content=b"x"), 403, "forbidden")
    async with place.client(await place.token("files:write")) as writer:
        assert (await writer.put(f"/v1/sandboxes/{sandbox}/files", params=path, content=b"x")).status_code == 200
        shape_of(await writer.get(f"/v1/sandboxes/{sandbox}/files", params=path), 403, "forbidden")


async def test_files_of_a_deleted_sandbox_are_gone(place: Server) -> None:
    async with place.client() as client:
        sandbox_id = await place.sandbox(client)
        await client.delete(f"/v1/sandboxes/{sandbox_id}")
        answer = await client.get(f"/v1/sandboxes/{sandbox_id}/files", params={"path": "/etc/hostname"})
    assert answer.status_code in (404, 409)
