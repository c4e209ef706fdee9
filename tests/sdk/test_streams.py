"""Streams that break: every event once, in order, and no end but the process's."""

import random
import threading
import time

import pytest
from tests.sdk.scripted_server import PROCESS, TOKEN, Script, error, frame, journal, serving

from space.sdk import (
    AsyncClient,
    AsyncSandbox,
    Client,
    InvalidRequestError,
    Output,
    ProcessExited,
    ProcessStarted,
    ResyncRequired,
    Sandbox,
    SandboxLost,
    SandboxLostError,
    UnreachableError,
)

pytestmark = pytest.mark.live

OUTPUTS = [("stderr" if n % 3 else "stdout", b"%d " % n * random.Random(n).randint(1, 200)) for n in range(200)]


def cuts(seed: int, longest: int) -> "list[int]":
    source = random.Random(seed)
    return [source.randint(0, longest) for _ in range(1000)]


def check(events: list[object], outputs: list[tuple[str, bytes]]) -> None:
    assert isinstance(events[0], ProcessStarted)
    assert isinstance(events[-1], ProcessExited)
    middle = events[1:-1]
    assert [(e.stream, e.data) for e in middle if isinstance(e, Output)] == outputs
    assert len(middle) == len(outputs)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_cut_at_random_bytes_gives_each_event_once_and_in_order(seed: int) -> None:
    places = iter(cuts(seed, 8000))
    script = Script(frames=journal(OUTPUTS), cut_after=lambda: next(places))
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"])
        check(list(command), OUTPUTS)
    assert script.attached > 10


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(2))
async def test_the_asynchronous_side_does_the_same(seed: int) -> None:
    places = iter(cuts(seed, 8000))
    script = Script(frames=journal(OUTPUTS), cut_after=lambda: next(places))
    with serving(script) as server:
        async with AsyncClient(server.url, TOKEN) as client:
            command = await (await AsyncSandbox.create(client=client)).start(["x"])
            check([event async for event in command], OUTPUTS)
    assert script.attached > 10


def test_an_expired_session_token_is_renewed_in_the_middle_of_a_stream() -> None:
    script = Script(frames=journal(OUTPUTS))

    def cut_and_expire() -> int:
        script.tokens.clear()
        return 20_000

    script.cut_after = cut_and_expire
    with serving(script) as server, Client(server.url, TOKEN) as client:
        check(list(Sandbox.create(client=client).start(["x"])), OUTPUTS)
    assert script.renewals > 1


def test_a_stream_survives_a_restart_of_the_server() -> None:
    script = Script(frames=journal(OUTPUTS[:50]), keep_open=True)
    whole = script.frames
    script.frames = whole[:20]
    with serving(script) as server, Client(server.url, TOKEN) as client:
        events = iter(Sandbox.create(client=client).start(["x"]))
        seen = [next(events) for _ in range(20)]
        server.stop()
        script.frames = whole
        threading.Timer(1.5, server.start).start()
        began = time.monotonic()
        seen += list(events)
        assert time.monotonic() - began < 10
    check(seen, OUTPUTS[:50])


def test_patience_ends_when_nothing_answers_any_more() -> None:
    script = Script(frames=journal(OUTPUTS[:5])[:-1])
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"], patience=0.3)
        events = command.events()
        seen = [next(events) for _ in range(6)]
        assert isinstance(seen[-1], Output)
        server.stop()
        with pytest.raises(UnreachableError, match="cannot reach"):
            next(events)
        server.start()


def test_a_stream_that_ends_without_an_exit_is_not_an_exit() -> None:
    script = Script(frames=journal(OUTPUTS[:5])[:-1])
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"], patience=0.3)
        with pytest.raises(UnreachableError, match="closed the stream"):
            command.wait()
        assert command.exit is None


def test_an_error_that_does_not_pass_ends_the_stream_at_once() -> None:
    script = Script(frames=journal(OUTPUTS[:5]))
    with serving(script) as server, Client(server.url, TOKEN) as client:
        events = Sandbox.create(client=client).start(["x"]).events(start=11)  # no event ends there
        with pytest.raises(InvalidRequestError):
            next(events)


def test_a_reader_may_begin_after_an_event_seen_before() -> None:
    script = Script(frames=journal(OUTPUTS[:5]))
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"])
        whole = list(command)
        assert list(command.events(start=whole[2].position)) == whole[3:]


def test_a_loop_that_was_left_is_taken_up_where_it_stopped() -> None:
    script = Script(frames=journal(OUTPUTS[:5]))
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"])
        first = []
        for event in command:
            first.append(event)
            if len(first) == 3:
                break
        command.close()
        check([*first, *command], OUTPUTS[:5])


def test_a_lost_sandbox_ends_the_stream_and_wait_says_so() -> None:
    script = Script(frames=[*journal([("stdout", b"x")])[:-1], (500, frame("sandbox_lost", {"reason": "oom"}, 500))])
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"])
        events = list(command)
        assert events[-1] == SandboxLost("oom", 500)
        assert command.exit is None
        with pytest.raises(SandboxLostError):
            Sandbox.create(client=client).start(["x"]).wait()


def test_a_trimmed_journal_is_reported_and_reading_goes_on() -> None:
    whole = journal(OUTPUTS[:10])
    oldest = whole[5][0]
    resync = (oldest, frame("resync_required", {"oldest_offset": oldest}, None))
    script = Script(frames=[resync, *whole[6:]])
    with serving(script) as server, Client(server.url, TOKEN) as client:
        events = list(Sandbox.create(client=client).start(["x"]))
    assert events[0] == ResyncRequired(oldest)
    assert [e.data for e in events[1:-1] if isinstance(e, Output)] == [data for _, data in OUTPUTS[5:10]]


def test_output_collects_both_streams_and_the_end() -> None:
    with serving(Script(frames=journal(OUTPUTS[:9], exit_code=4))) as server, Client(server.url, TOKEN) as client:
        result = Sandbox.create(client=client).start("x").output()
    assert result.exit_code == 4
    assert result.stdout_bytes == b"".join(data for stream, data in OUTPUTS[:9] if stream == "stdout")
    assert result.stderr_bytes == b"".join(data for stream, data in OUTPUTS[:9] if stream == "stderr")
    assert result.process_id == PROCESS


def test_output_that_a_recovered_process_prints_again_is_there_once() -> None:
    whole = journal([("stdout", b"one "), ("stdout", b"two ")])
    back = (500, frame("rolled_back", {"stdout_offset": 4, "stderr_offset": 0}, 500))
    again = (520, frame("stdout", {"data": "VFdPIA==", "offset": 4}, 520))
    exited = (600, frame("process_exited", {"exit_code": 0, "signal": None, "reason": None}, 600))
    script = Script(frames=[*whole[:3], back, again, exited])
    with serving(script) as server, Client(server.url, TOKEN) as client:
        assert Sandbox.create(client=client).start(["x"]).output().stdout == "one TWO "


def test_a_busy_data_plane_is_asked_again() -> None:
    script = Script(frames=journal(OUTPUTS[:3]))
    with serving(script) as server, Client(server.url, TOKEN) as client:
        command = Sandbox.create(client=client).start(["x"])
        script.tokens.clear()
        script.failures = [error("service_unavailable", 503, retryable=True, headers={"Retry-After": "0"})]
        check(list(command), OUTPUTS[:3])
    assert script.renewals == 1


def test_the_data_plane_may_be_reached_another_way() -> None:
    script = Script(frames=journal(OUTPUTS[:3]))
    with serving(script) as server:
        server_url, server.url = server.url, "http://192.0.2.1:1"  # as the server calls itself
        with Client(server_url, TOKEN, data_plane_url=server_url) as client:
            check(list(Sandbox.create(client=client).start(["x"])), OUTPUTS[:3])
