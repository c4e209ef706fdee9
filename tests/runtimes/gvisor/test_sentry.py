"""Talking with a sentry: it belongs to a guest, so whatever it answers is bounded and read with care."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from space.core.errors import RuntimeFailed
from space.runtimes.gvisor import sentry
from space.runtimes.gvisor.sentry import MAX_ANSWER, SentryRefused

pytestmark = pytest.mark.anyio
Answer = Callable[[socket.socket, dict[str, object], list[int]], None]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[Answer], Path]]:
    """Listen once, and answer as told."""
    threads: list[threading.Thread] = []
    listeners: list[socket.socket] = []

    def listen(answer: Answer) -> Path:
        path = tmp_path / "runsc.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        listeners.append(listener)

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                data, fds, _, _ = socket.recv_fds(link, 65536, 8)
                answer(link, json.loads(data), fds)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield listen
    for thread in threads:
        thread.join(5)
    for listener in listeners:
        listener.close()


async def test_a_call_is_answered_with_its_result(answering: Callable[[Answer], Path]) -> None:
    asked: list[dict[str, object]] = []

    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        asked.append(question)
        link.sendall(b'{"success":true,"err":"","result":{"x":1}}')

    assert await sentry.call(answering(answer), "containerManager.Pause") == {"x": 1}
    assert asked == [{"method": "containerManager.Pause", "arg": None}]


async def test_an_answer_may_come_in_pieces(answering: Callable[[Answer], Path]) -> None:
    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        for byte in b'{"success":true,"result":{"a":{"b":"}"}}}':
            link.sendall(bytes([byte]))

    assert await sentry.call(answering(answer), "m") == {"a": {"b": "}"}}


async def test_descriptors_go_with_the_call(answering: Callable[[Answer], Path], tmp_path: Path) -> None:
    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        for fd in fds:
            os.write(fd, b"written by the sentry")
            os.close(fd)
        link.sendall(b'{"success":true}')

    fd = os.open(tmp_path / "image", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        await sentry.call(answering(answer), "m", fds=[fd])
    finally:
        os.close(fd)
    assert (tmp_path / "image").read_bytes() == b"written by the sentry"


async def test_a_refusal_says_why(answering: Callable[[Answer], Path]) -> None:
    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        link.sendall(b'{"success":false,"err":"it cannot be"}')

    with pytest.raises(SentryRefused, match="it cannot be"):
        await sentry.call(answering(answer), "m")


@pytest.mark.parametrize("said", [b"", b"[1]", b"nonsense}", b"{" * 100, b"\xff}", b'"text"'])
async def test_what_is_no_answer_is_a_failure(answering: Callable[[Answer], Path], said: bytes) -> None:
    path = answering(lambda link, question, fds: link.sendall(said))
    with pytest.raises(RuntimeFailed):
        await sentry.call(path, "m")


async def test_a_sentry_cannot_fill_our_memory(answering: Callable[[Answer], Path]) -> None:
    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        with contextlib.suppress(OSError):  # it learns that nobody listens any more
            while True:
                link.sendall(b"{" * MAX_ANSWER)

    with pytest.raises(RuntimeFailed):
        await sentry.call(answering(answer), "m")


async def test_a_sentry_that_answers_a_byte_at_a_time_does_not_keep_us_for_ever(
    answering: Callable[[Answer], Path],
) -> None:
    def answer(link: socket.socket, question: dict[str, object], fds: list[int]) -> None:
        with contextlib.suppress(OSError):
            while True:  # until nobody listens any more
                link.sendall(b" ")
                time.sleep(0.01)

    with pytest.raises(RuntimeFailed):
        await sentry.call(answering(answer), "m", timeout=0.1)


async def test_sentries_that_do_not_answer_take_no_thread_from_others(tmp_path: Path) -> None:
    path = tmp_path / "runsc.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen(100)
        asking = [asyncio.ensure_future(sentry.call(path, "m", timeout=60)) for _ in range(100)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "others work on") == "others work on"
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_nobody_there_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailed, match="does not answer"):
        await sentry.call(tmp_path / "nothing.sock", "m")
