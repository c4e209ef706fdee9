"""`space run` as a process of its own, against a server that breaks on request."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk.scripted_server import TOKEN, Cut, Script, ScriptedServer, error, frame, journal, serving

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> Script:
    return Script(frames=journal([("stdout", b"out\xff\n"), ("stderr", b"err\n")], exit_code=7))


@pytest.fixture
def server(script: Script) -> Iterator[ScriptedServer]:
    with serving(script) as server:
        yield server


def start(server: ScriptedServer, *arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "SPACE_API_URL": server.url,
        "SPACE_API_TOKEN": TOKEN,
        "PATH": os.environ["PATH"],
    }
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "space.cli", *arguments], env=environment, **settings)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def calls(script: Script) -> list[tuple[str, str]]:
    return [(method, path.removeprefix("/v1/")) for method, path, _, _ in script.requests]


def wait_for(condition: "object", seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_it_writes_the_same_bytes_to_the_same_descriptors_and_leaves_with_the_commands_code(
    server: ScriptedServer, script: Script
) -> None:
    assert finish(start(server, "run", "--", "x")) == (7, b"out\xff\n", b"err\n")
    assert calls(script)[-1] == ("DELETE", "sandboxes/" + "sbx" + "0" * 26)


def test_dashes_after_the_program_are_the_programs(server: ScriptedServer, script: Script) -> None:
    assert finish(start(server, "run", "--env", "A=1", "sh", "-c", "exit 7", "--env"))[0] == 7
    body = next(json.loads(body) for method, path, _, body in script.requests if path.endswith("/commands"))
    assert body == {"argv": ["sh", "-c", "exit 7", "--env"], "env": {"A": "1"}}


@pytest.mark.parametrize(("exited", "code"), [({"signal": "SIGKILL"}, 137), ({"signal": "SIGTERM"}, 143), ({}, 125)])
def test_a_command_that_a_signal_ended_gives_128_and_its_number(
    server: ScriptedServer, script: Script, exited: dict[str, str], code: int
) -> None:
    script.frames = journal([], exit_code=None, **exited)
    assert finish(start(server, "run", "--", "x"))[0] == code


def test_a_timeout_is_said(server: ScriptedServer, script: Script) -> None:
    script.frames = journal([], exit_code=None, signal="SIGKILL", reason="timeout")
    code, _, err = finish(start(server, "run", "--timeout", "5", "--", "x"))
    assert code == 137
    assert b"timeout" in err


def test_a_lost_sandbox_is_no_exit_code_of_the_command(server: ScriptedServer, script: Script) -> None:
    script.frames = [*journal([])[:-1], (999, frame("sandbox_lost", {"reason": "oom"}, 999))]
    code, _, err = finish(start(server, "run", "--", "x"))
    assert code == 125
    assert b"oom" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_deletes_the_sandbox_and_leaves_with_its_code(
    server: ScriptedServer, script: Script, number: signal.Signals
) -> None:
    script.frames, script.keep_open = journal([("stdout", b"out\n")])[:-1], True
    process = start(server, "run", "--", "sleep", "600")
    assert process.stdout is not None
    assert process.stdout.read(4) == b"out\n"
    process.send_signal(number)
    assert finish(process)[0] == 128 + number
    assert calls(script)[-1][0] == "DELETE"


def test_a_signal_with_keep_kills_the_command_only(server: ScriptedServer, script: Script) -> None:
    script.frames, script.keep_open = journal([("stdout", b"out\n")])[:-1], True
    process = start(server, "run", "--keep", "--", "sleep", "600")
    assert process.stdout is not None
    process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert b"kept sbx" in err
    assert calls(script)[-1][1].endswith("/kill")
    assert "DELETE" not in [method for method, _ in calls(script)]


def test_a_second_signal_leaves_at_once(server: ScriptedServer, script: Script) -> None:
    script.frames, script.keep_open = journal([("stdout", b"out\n")])[:-1], True
    process = start(server, "run", "--", "sleep", "600")
    assert process.stdout is not None
    process.stdout.read(4)
    script.failures = [error("service_unavailable", 503, retryable=True, headers={"Retry-After": "50"})]
    process.send_signal(signal.SIGINT)
    wait_for(lambda: calls(script)[-1][0] == "DELETE")  # it waits now for the server to be able to delete
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert finish(process)[0] == 130
    assert time.monotonic() - began < 5


def test_a_signal_while_the_sandbox_is_being_made_leaves_none(server: ScriptedServer, script: Script) -> None:
    script.operation_polls = 1_000_000
    process = start(server, "run", "--", "x")
    wait_for(lambda: any(path.startswith("operations/") for _, path in calls(script)))
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    assert calls(script)[-1][0] == "DELETE"


def test_a_reader_that_goes_away_ends_it_and_the_sandbox(server: ScriptedServer, script: Script) -> None:
    script.frames = journal([("stdout", b"x" * 60_000)] * 50)
    reading, writing = os.pipe()
    process = start(server, "run", "--", "yes", stdout=writing)
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    assert finish(process)[0] == 141
    assert calls(script)[-1][0] == "DELETE"


def test_stdin_is_forwarded_and_closed(server: ScriptedServer, script: Script) -> None:
    script.frames, script.keep_open = journal([])[:-1], True
    process = start(server, "run", "--", "cat", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"hello")
    process.stdin.close()
    process.stdin = None  # so that communicate() leaves it alone
    stdin = "processes/prc" + "0" * 26 + "/stdin"
    wait_for(lambda: any(method == "DELETE" and path.endswith(stdin) for method, path in calls(script)))
    script.frames, script.keep_open = journal([], exit_code=0), False
    assert finish(process)[0] == 0
    assert b"".join(body for method, _, _, body in script.requests if method == "PUT") == b"hello"
    command = next(json.loads(body) for _, path, _, body in script.requests if path.endswith("/commands"))
    assert command["stdin"] == "pipe"


def test_no_stdin_means_none(server: ScriptedServer, script: Script) -> None:
    finish(start(server, "run", "--no-stdin", "--", "x", stdin=subprocess.PIPE))
    command = next(json.loads(body) for _, path, _, body in script.requests if path.endswith("/commands"))
    assert "stdin" not in command


def test_json_is_one_object_with_bytes_kept_whole(server: ScriptedServer) -> None:
    code, out, err = finish(start(server, "run", "-o", "json", "--", "x"))
    body = json.loads(out)
    assert (code, err) == (7, b"")
    assert (body["exit_code"], body["stderr"], body["stdout_base64"]) == (7, "err\n", "b3V0/wo=")


def test_a_failure_of_space_is_125_and_one_line(server: ScriptedServer, script: Script) -> None:
    script.failures = [error("not_found", 404)]
    code, out, err = finish(start(server, "run", "--template", "nope", "--", "x"))
    assert (code, out) == (125, b"")
    assert err.splitlines() == [b"space: this is not_found [field=x]  (request req1)"]


def test_a_failure_in_json_is_an_envelope_on_stderr(server: ScriptedServer, script: Script) -> None:
    script.failures = [error("not_found", 404)]
    code, _, err = finish(start(server, "run", "-o", "json", "--", "x"))
    assert code == 125
    assert json.loads(err)["error"]["code"] == "not_found"


def test_what_breaks_on_the_way_is_not_seen_in_the_output(server: ScriptedServer, script: Script) -> None:
    script.frames = journal([("stdout", b"%d\n" % n) for n in range(1, 31)])
    script.failures = [Cut, error("service_unavailable", 503, retryable=True, headers={"Retry-After": "0"})]
    places = iter([500, 700, 900] + [None] * 9)
    script.cut_after = lambda: next(places)
    code, out, err = finish(start(server, "run", "--", "x"))
    assert code == 0
    assert err.count(b"trying again") == 2, "a call that is tried again is said; a stream that is taken up is not"
    assert out.split() == [b"%d" % n for n in range(1, 31)]


def test_a_terminal_is_asked_for_with_its_size(server: ScriptedServer, script: Script) -> None:
    script.frames = journal([("pty", b"prompt$ ")], exit_code=0)
    assert finish(start(server, "run", "-t", "--", "bash"))[:2] == (0, b"prompt$ ")
    command = next(json.loads(body) for _, path, _, body in script.requests if path.endswith("/commands"))
    assert command["pty"] == {"cols": 80, "rows": 24}
