"""Files of a running sandbox: bytes in and out as streams, and what a directory holds.

Contents are never parsed and never shown as anything but a download: a guest's page must not run on our origin.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from space.core.account import Scope
from space.core.errors import FailedPrecondition, GuestUnreachable, InsufficientStorage, NotFound
from space.core.file import FileEvent, FileInfo
from space.server import sse
from space.server.answers import Json, Stream
from space.server.documentation import Answer, Document, header_parameter
from space.server.endpoint import Routes, Rule
from space.server.errors import RangeNotSatisfiable
from space.server.request import ApiRequest
from space.server.v1 import examples, render
from space.server.v1.ranges import ByteRange, Suffix, parse_range
from space.server.v1.schemas import files as forms
from space.server.v1.schemas.shared import SandboxIdPath

routes = Routes("files")

PATH = "/v1/sandboxes/{sandbox_id}/files"
NO_FILE = NotFound("there is no /home/user/nosuch in the sandbox", path="/home/user/nosuch")
IS_DIRECTORY = FailedPrecondition("/home/user is a directory")
NOT_RUNNING = FailedPrecondition("the sandbox is suspended; it must be running", current_state="suspended")
SILENT = GuestUnreachable("the sandbox does not answer; try again")
FULL = InsufficientStorage("the sandbox's disk is full")
BYTES = "application/octet-stream"
CREATED_EVENT = 'event: created\ndata: {"path":"/home/user/a.txt","at":"2026-12-01T09:30:00.000000Z"}\n\n'
DOWNLOAD: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
    "Cache-Control": "private, no-cache",
    "Accept-Ranges": "bytes",
}
RANGE = header_parameter("Range", "One range of bytes, e.g. `bytes=0-1023`.", "bytes=0-1023")
IF_NONE_MATCH = header_parameter("If-None-Match", "Answers 304 if the file still has this ETag.", '"18c-400"')
FILE_HEADERS = {"ETag": "Changes whenever the content may have changed.", "Last-Modified": "When it was written."}


@routes.add(
    "GET",
    PATH,
    rule=Rule(right=Scope.FILES_READ),
    document=Document(
        id="readFile",
        summary="Read a file",
        tag=routes.tag,
        description="Streamed; any size.",
        parameters=(RANGE, IF_NONE_MATCH),
        answers={
            200: Answer(description="The bytes.", media_type=BYTES, headers=FILE_HEADERS),
            206: Answer(
                description="The bytes of the range.",
                media_type=BYTES,
                headers=FILE_HEADERS | {"Content-Range": "Which."},
            ),
            304: Answer(description="It has not changed."),
        },
        raises=(NO_FILE, IS_DIRECTORY, NOT_RUNNING, SILENT, RangeNotSatisfiable(1024)),
    ),
)
async def read_file(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.PathQuery, Query()]
) -> Response:
    """Stream a file, or a range of it."""
    wanted = parse_range(request.header(b"range"))
    return await _opened(request, sandbox_id, query.path, wanted)


@routes.add(
    "HEAD",
    PATH,
    rule=Rule(right=Scope.FILES_READ),
    document=Document(
        id="headFile",
        summary="Size and ETag of a file",
        tag=routes.tag,
        parameters=(IF_NONE_MATCH,),
        answers={
            200: Answer(description="As for GET, without the bytes.", headers=FILE_HEADERS),
            304: Answer(description="It has not changed."),
        },
        raises=(NO_FILE, IS_DIRECTORY, NOT_RUNNING, SILENT),
    ),
)
async def head_file(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.PathQuery, Query()]
) -> Response:
    """Say what a GET would answer."""
    return await _opened(request, sandbox_id, query.path, None)


async def _opened(request: ApiRequest, sandbox_id: str, path: str, wanted: ByteRange | Suffix | None) -> Response:
    files = request.services.files
    if wanted is not None:
        wanted = await _settled(request, sandbox_id, path, wanted)
    start, length = (0, None) if wanted is None else (wanted.first, wanted.length)
    async with AsyncExitStack() as stack:
        opening = files.read(request.principal, sandbox_id, path, start=start, length=length)
        info, pieces = await stack.enter_async_context(opening)
        headers = dict(DOWNLOAD) | _file_headers(info)
        if _matches(request.header(b"if-none-match"), info.etag):
            return Response(status_code=304, headers=headers)
        status, size = 200, info.size
        if wanted is not None:
            bounds = wanted.within(info.size)
            if bounds is None:
                raise RangeNotSatisfiable(info.size)
            status, size = 206, bounds[1]
            headers["Content-Range"] = f"bytes {bounds[0]}-{bounds[0] + bounds[1] - 1}/{info.size}"
        headers["Content-Length"] = str(size)
        return Stream(pieces, media_type=BYTES, status_code=status, headers=headers, resources=stack.pop_all())


async def _settled(request: ApiRequest, sandbox_id: str, path: str, wanted: ByteRange | Suffix) -> ByteRange | None:
    """Turn what only the file's present state decides into plain offsets; None if all of it is to be sent.

    The file is opened for that, since its size is that of the link's target, and looked at again when it is read.
    """
    condition = request.header(b"if-range")
    if condition is None and isinstance(wanted, ByteRange):
        return wanted
    async with request.services.files.read(request.principal, sandbox_id, path, length=0) as (info, _):
        if condition is not None and condition.strip() != f'"{info.etag}"':
            return None
        return wanted if isinstance(wanted, ByteRange) else wanted.of(info.size)


def _file_headers(info: FileInfo) -> dict[str, str]:
    modified = info.modified_at.strftime("%a, %d %b %Y %H:%M:%S GMT")
    return {"ETag": f'"{info.etag}"', "Last-Modified": modified}


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or f'"{etag}"' in tags


@routes.add(
    "PUT",
    PATH,
    rule=Rule(right=Scope.FILES_WRITE),
    document=Document(
        id="writeFile",
        summary="Write a file",
        tag=routes.tag,
        description="Streamed and atomic: readers see the old file or the whole new one. Makes parents.",
        media_type=BYTES,
        answers={200: Answer(description="What was written.", model=forms.File, examples={"written": examples.FILE})},
        raises=(IS_DIRECTORY, NOT_RUNNING, SILENT, FULL),
    ),
)
async def write_file(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.WriteQuery, Query()]
) -> Response:
    """Stream the body into a file."""
    info = await request.services.files.write(
        request.call, sandbox_id, query.path, request.stream(), mode=query.permissions, user=query.user
    )
    return Json(render.file(info))


@routes.add(
    "DELETE",
    PATH,
    rule=Rule(right=Scope.FILES_WRITE),
    document=Document(
        id="removeFile",
        summary="Remove a file or directory",
        tag=routes.tag,
        answers={204: Answer(description="It is gone.")},
        raises=(NO_FILE, FailedPrecondition("/home/user is not empty; send recursive=true"), NOT_RUNNING, SILENT),
    ),
)
async def remove_file(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.RemoveQuery, Query()]
) -> Response:
    """Remove what is at a path."""
    await request.services.files.remove(request.call, sandbox_id, query.path, recursive=query.recursive)
    return Response(status_code=204)


@routes.add(
    "GET",
    PATH + ":list",
    rule=Rule(right=Scope.FILES_READ),
    document=Document(
        id="listFiles",
        summary="List a directory",
        tag=routes.tag,
        answers={
            200: Answer(
                description="Its entries, sorted by path.",
                model=forms.FileList,
                examples={"two": {"items": [examples.FILE, examples.DIRECTORY], "truncated": False}},
            )
        },
        raises=(NO_FILE, FailedPrecondition("/home/user/data.csv is no directory"), NOT_RUNNING, SILENT),
    ),
)
async def list_files(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.ListQuery, Query()]
) -> Response:
    """List below a directory."""
    found = await request.services.files.list(
        request.principal, sandbox_id, query.path, depth=query.depth, limit=query.limit + 1
    )
    shown = [render.file(info) for info in found[: query.limit]]
    return Json({"items": shown, "truncated": len(found) > query.limit})


@routes.add(
    "GET",
    PATH + ":stat",
    rule=Rule(right=Scope.FILES_READ),
    document=Document(
        id="statFile",
        summary="Describe a path",
        tag=routes.tag,
        description="A link is described, not followed.",
        answers={
            200: Answer(
                description="What is there.",
                model=forms.File,
                examples={"file": examples.FILE, "directory": examples.DIRECTORY},
            )
        },
        raises=(NO_FILE, NOT_RUNNING, SILENT),
    ),
)
async def stat_file(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.PathQuery, Query()]
) -> Response:
    """Describe a path."""
    return Json(render.file(await request.services.files.stat(request.principal, sandbox_id, query.path)))


@routes.add(
    "POST",
    PATH + ":move",
    rule=Rule(right=Scope.FILES_WRITE),
    document=Document(
        id="moveFile",
        summary="Move a file or directory",
        tag=routes.tag,
        requests={"rename": {"source": "/home/user/a.txt", "target": "/home/user/b.txt"}},
        answers={
            200: Answer(description="What is at the target.", model=forms.File, examples={"moved": examples.FILE})
        },
        raises=(NO_FILE, NOT_RUNNING, SILENT, FULL),
    ),
)
async def move_file(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.Move) -> Response:
    """Rename within the sandbox."""
    return Json(render.file(await request.services.files.move(request.call, sandbox_id, body.source, body.target)))


@routes.add(
    "POST",
    PATH + ":mkdir",
    rule=Rule(right=Scope.FILES_WRITE),
    document=Document(
        id="makeDirectory",
        summary="Make a directory",
        tag=routes.tag,
        description="With its parents. Making one that exists succeeds.",
        requests={"results": {"path": "/home/user/results"}, "private": {"path": "/home/user/.keys", "mode": "0700"}},
        answers={200: Answer(description="The directory.", model=forms.File, examples={"made": examples.DIRECTORY})},
        raises=(FailedPrecondition("/home/user/data.csv is no directory"), NOT_RUNNING, SILENT, FULL),
    ),
)
async def make_directory(request: ApiRequest, sandbox_id: SandboxIdPath, body: forms.MakeDirectory) -> Response:
    """Make a directory."""
    info = await request.services.files.mkdir(
        request.call, sandbox_id, body.path, mode=body.permissions, user=body.user
    )
    return Json(render.file(info))


@routes.add(
    "GET",
    PATH + ":watch",
    rule=Rule(right=Scope.FILES_READ, is_stream=True),
    document=Document(
        id="watchFiles",
        summary="Watch a directory",
        tag=routes.tag,
        description="Changes as they happen: `created`, `modified`, `removed`, `moved`, or `overflow` (list again).",
        answers={
            200: Answer(description="The changes.", media_type=sse.MEDIA_TYPE, examples={"created": CREATED_EVENT})
        },
        raises=(NO_FILE, NOT_RUNNING, SILENT),
    ),
)
async def watch_files(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.WatchQuery, Query()]
) -> Response:
    """Follow changes below a path."""
    services = request.services
    info = await services.files.stat(request.principal, sandbox_id, query.path)  # 404 before the stream begins
    changes = services.files.watch(request.principal, sandbox_id, info.path, recursive=query.recursive)
    return Stream(sse.with_keep_alive(_watched(changes)), media_type=sse.MEDIA_TYPE, headers=sse.HEADERS)


async def _watched(changes: AsyncIterator[FileEvent]) -> AsyncIterator[bytes]:
    async for change in changes:
        yield sse.frame(change.kind, {"path": change.path, "at": change.at})


@routes.add(
    "GET",
    PATH + ":archive",
    rule=Rule(right=Scope.FILES_READ, is_stream=True),
    document=Document(
        id="readArchive",
        summary="Read a directory as a tar",
        tag=routes.tag,
        answers={200: Answer(description="An uncompressed tar stream.", media_type="application/x-tar")},
        raises=(NO_FILE, NOT_RUNNING, SILENT),
    ),
)
async def read_archive(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.PathQuery, Query()]
) -> Response:
    """Stream a directory."""
    async with AsyncExitStack() as stack:
        opening = request.services.files.read_archive(request.principal, sandbox_id, query.path)
        pieces = await stack.enter_async_context(opening)
        headers = {name: value for name, value in DOWNLOAD.items() if name != "Accept-Ranges"}
        return Stream(pieces, media_type="application/x-tar", headers=headers, resources=stack.pop_all())


@routes.add(
    "PUT",
    PATH + ":archive",
    rule=Rule(right=Scope.FILES_WRITE),
    document=Document(
        id="writeArchive",
        summary="Unpack a tar below a directory",
        tag=routes.tag,
        description="Entries that would leave the directory are refused.",
        media_type="application/x-tar",
        answers={
            200: Answer(
                description="What was unpacked.",
                model=forms.Unpacked,
                examples={"unpacked": {"files": 3, "bytes": 4096}},
            )
        },
        raises=(NOT_RUNNING, SILENT, FULL),
    ),
)
async def write_archive(
    request: ApiRequest, sandbox_id: SandboxIdPath, query: Annotated[forms.ArchiveQuery, Query()]
) -> Response:
    """Stream the body into a directory."""
    counts: Mapping[str, Any] = await request.services.files.write_archive(
        request.call, sandbox_id, query.path, request.stream(), user=query.user
    )
    return Json({"files": counts["files"], "bytes": counts["bytes"]})
