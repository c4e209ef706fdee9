"""Cases 15 and 16 of the faults that users of similar systems reported: files."""

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

from space.sdk import Client, InsufficientStorageError, Sandbox, SpaceError

pytestmark = pytest.mark.root

MIB = 1 << 20
SIZES = (0, 1, 4095, 18_433, 131_073, MIB, 16 * MIB + 1, 256 * MIB)


def pieces(size: int, *, seed: int) -> Iterator[bytes]:
    """Yield `size` bytes that do not compress, in pieces of odd sizes."""
    source = random.Random(seed)
    while size:
        length = min(size, source.choice((1, 4_096, 65_537, MIB)))
        yield source.randbytes(length)
        size -= length


@pytest.mark.parametrize("size", SIZES)
def test_a_written_file_is_there_whole(sandbox: Sandbox, size: int) -> None:
    """Case 15 (OpenSandbox#1016): what the guest sees and what comes back have the digest of what was sent."""
    digest = hashlib.sha256()

    def source() -> Iterator[bytes]:
        for piece in pieces(size, seed=size):
            digest.update(piece)
            yield piece

    info = sandbox.files.write("/home/user/file", source())
    assert info.size == size
    result = sandbox.exec(["sha256sum", "/home/user/file"])
    assert result.stdout.split()[0] == digest.hexdigest()
    back = hashlib.sha256()
    with sandbox.files.stream("/home/user/file") as stream:
        for piece in stream:
            back.update(piece)
    assert back.hexdigest() == digest.hexdigest()


@pytest.mark.parametrize("path", ["/proc/nothing", "/etc/passwd/below-a-file", "/home/user"])
def test_an_unwritable_path_is_an_error(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(SpaceError) as caught:
        sandbox.files.write(path, b"x")
    assert caught.value.code in {"forbidden", "failed_precondition", "invalid_request", "not_found"}


def test_a_full_disk_is_an_error_and_leaves_no_half_file(client: Client) -> None:
    with Sandbox.create("base", client=client, disk_mib=256) as sandbox:
        with pytest.raises(InsufficientStorageError):
            sandbox.files.write("/home/user/big", pieces(400 * MIB, seed=1))
        assert [entry.path for entry in sandbox.files.list("/home/user") if "big" in entry.path] == []
        assert sandbox.files.write("/home/user/small", b"room again").size == 10


@pytest.mark.parametrize(
    "size", [200 * MIB, pytest.param(1024 * MIB, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_parallel_uploads_do_not_pile_up_in_the_server(server: Instance, client: Client, size: int) -> None:
    """Case 16 (deer-flow#4811): five at once; the server's memory grows by less than 100 MiB."""
    (pid,) = server.pids

    def resident() -> int:
        """Return the most memory that the server ever held, in MiB."""
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024

    sandboxes = [Sandbox.create("base", client=client, disk_mib=2048) for _ in range(5)]
    try:
        sandboxes[0].files.write("/tmp/warm", b"x" * MIB)
        before = resident()
        block = os.urandom(MIB)
        problems: list[BaseException] = []

        def upload(sandbox: Sandbox) -> None:
            try:
                sandbox.files.write("/home/user/big", (block for _ in range(size // MIB)))
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=upload, args=(sandbox,)) for sandbox in sandboxes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert {sandbox.files.stat("/home/user/big").size for sandbox in sandboxes} == {size}
        assert resident() - before < 100
    finally:
        for sandbox in sandboxes:
            sandbox.kill()
