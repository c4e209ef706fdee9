"""An object store that fails, hangs, cuts and lies, under real sandboxes.

Whatever it does: a sandbox is `suspended` only once all of it is stored, one that is suspended stays so until a wake
has worked, and what is damaged is said to be and never started.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.guests import ASK, COUNTER, python
from tests.e2e.instance import Instance
from tests.storage.objects.s3 import BUCKET, CREDENTIALS, free_port, s3_process

from space.sdk import Sandbox, SpaceError

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

#: So that a wake needs the object store.
NO_CACHE = {"SPACE_SNAPSHOT_CACHE_MIB": "0", "SPACE_TEMPLATE_IMAGES": "0"}
#: So that an upload takes a while.
LOAD = "head -c 48M /dev/urandom > /dev/shm/load; sha256sum < /dev/shm/load"


# A local directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    made = Instance(tmp_path_factory.mktemp("local") / "space", templates_dir, NO_CACHE)
    try:
        made.up()
        yield made
    finally:
        made.remove()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def turn_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    os.truncate(path, 0)


HARMS: dict[str, Callable[[Path], None]] = {"cut": cut, "a turned bit": turn_a_bit, "empty": empty, "gone": Path.unlink}


@contextlib.contextmanager
def harmed(path: Path, harm: Callable[[Path], None]) -> Iterator[None]:
    """Damage an object for a while."""
    whole = path.with_name(f"{path.name}.whole")
    shutil.copy2(path, whole)
    try:
        harm(path)
        yield
    finally:
        whole.replace(path)


def chosen(paths: list[Path]) -> Path:
    return max(paths, key=lambda path: (path.stat().st_size, path.name))


def test_a_damaged_object_is_told_and_never_started_and_the_whole_one_wakes(server: Instance, client: Any) -> None:
    with Sandbox.create("base", client=client) as sandbox:
        sandbox.start(["python3", "-c", COUNTER], detached=True)
        before = int(python(sandbox, ASK))
        sandbox.suspend()
        objects = server.data_dir / "objects/projects"
        chunk, manifest = chosen([*objects.glob("*/chunks/*/*")]), chosen([*objects.glob("*/manifests/*")])
        for victim in (chunk, manifest):
            for name, harm in HARMS.items():
                with harmed(victim, harm), pytest.raises(SpaceError, match="damaged") as caught:
                    sandbox.wake()
                assert caught.value.code == "failed_precondition", name
                assert (sandbox.refresh().state, sandbox.info.operation_id) == ("suspended", None)
                assert server.machine_pids(sandbox.id) == [], name
                assert not list((server.data_dir / "node/images/incoming").iterdir())
        assert sandbox.wake().state == "running"
        assert int(python(sandbox, ASK)) > before
        sandbox.kill()


def test_a_suspend_that_cannot_be_stored_leaves_the_sandbox_running(server: Instance, client: Any) -> None:
    with Sandbox.create("base", client=client) as sandbox:
        sandbox.start(["python3", "-c", COUNTER], detached=True)
        before = int(python(sandbox, ASK))
        objects, away = server.data_dir / "objects", server.data_dir / "objects-away"
        objects.rename(away)
        objects.touch()  # a file, where its directory was
        try:
            with pytest.raises(SpaceError) as caught:
                sandbox.suspend()
        finally:
            objects.unlink()
            away.rename(objects)
        assert (caught.value.code, caught.value.retryable) == ("service_unavailable", True)
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("running", None)
        assert int(python(sandbox, ASK)) > before
        assert not list((server.data_dir / "node/images/staging").iterdir())
        sandbox.suspend()
        sandbox.wake()
        assert int(python(sandbox, ASK)) > before
        sandbox.kill()


# S3


class Bucket:
    """A server of a bucket that can be stopped, ended and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._running = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self._pid = self._running.enter_context(s3_process(self.directory, self.port)).pid

    def end(self) -> None:
        """Kill it."""
        self._running.close()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    @property
    def settings(self) -> dict[str, str]:
        endpoint = f"http://127.0.0.1:{self.port}"
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "SPACE_OBJECT_STORE_URL": f"s3://{BUCKET}/snapshots"}

    def wait_for_chunks(self, count: int) -> None:
        """Wait until an upload is under way."""
        deadline = time.monotonic() + 60
        while sum(1 for _ in (self.directory / BUCKET).rglob("*_object")) < count:
            assert time.monotonic() < deadline, "no upload begins"
            time.sleep(0.005)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    (tmp_path / "s3").mkdir()
    made = Bucket(tmp_path / "s3")
    yield made
    made.end()


def in_background(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin a call; return what waits for its answer, or for what it raised."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(180)
        assert answers, "it does not end"
        return answers[0]

    return wait


def test_a_bucket_that_dies_in_the_middle_of_an_upload_and_comes_back_loses_nothing(
    make_instance: Callable[..., Instance], bucket: Bucket
) -> None:
    instance = make_instance(**bucket.settings, **NO_CACHE)
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        sandbox.start(["python3", "-c", COUNTER], detached=True)
        load = sandbox.exec(LOAD).stdout
        before = int(python(sandbox, ASK))
        answer = in_background(sandbox.suspend)
        bucket.wait_for_chunks(3)
        bucket.end()
        time.sleep(1)
        assert sandbox.refresh().state != "suspended", "nothing is suspended that is not stored"
        bucket.start()
        result = answer()
        if isinstance(result, BaseException):  # it has given up before: then the sandbox runs, and may be asked again
            assert isinstance(result, SpaceError)
            assert result.retryable
            assert sandbox.refresh().state == "running"
            sandbox.suspend()
        assert sandbox.refresh().state == "suspended"

        bucket.end()
        with pytest.raises(SpaceError) as caught:
            sandbox.wake()
        assert (caught.value.code, caught.value.retryable) == ("service_unavailable", True)
        assert (sandbox.refresh().state, sandbox.info.operation_id) == ("suspended", None)
        bucket.start()
        sandbox.wake()
        assert sandbox.exec("sha256sum < /dev/shm/load").stdout == load
        assert int(python(sandbox, ASK)) > before
        sandbox.kill()


def test_a_bucket_that_hangs_for_a_while_makes_a_suspend_and_a_wake_late_and_nothing_else(
    make_instance: Callable[..., Instance], bucket: Bucket
) -> None:
    instance = make_instance(**bucket.settings, **NO_CACHE)
    with instance.client() as client, Sandbox.create("base", client=client) as sandbox:
        load = sandbox.exec(LOAD).stdout
        answer = in_background(sandbox.suspend)
        bucket.wait_for_chunks(3)
        bucket.send(signal.SIGSTOP)
        time.sleep(2)
        assert sandbox.refresh().state == "suspending"
        bucket.send(signal.SIGCONT)
        assert not isinstance(answer(), BaseException), answer()
        bucket.send(signal.SIGSTOP)
        answer = in_background(sandbox.wake)
        time.sleep(2)
        assert sandbox.refresh().state == "waking"
        bucket.send(signal.SIGCONT)
        assert not isinstance(answer(), BaseException), answer()
        assert sandbox.exec("sha256sum < /dev/shm/load").stdout == load
        sandbox.kill()
