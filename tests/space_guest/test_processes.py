import asyncio
import hashlib
import os
import time

import pytest

from space.core.command import CommandSpec, Pty
from space.core.errors import FailedPrecondition, InvalidRequest, NotFound
from space.node.guest import SpawnFailed

pytestmark = [pytest.mark.anyio, pytest.mark.live]


async def test_output_of_both_streams_and_the_exit_code_arrive(session):
    exited, stdout, stderr = await session.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (stdout, stderr) == (b"out\n", b"err\n")
    assert (exited.exit_code, exited.signal, exited.reason) == (7, None, None)
    assert (exited.stdout_bytes, exited.stderr_bytes) == (4, 4)


async def test_a_fatal_signal_is_named_and_is_no_exit_code(session):
    exited, _, _ = await session.run("sh", "-c", "kill -SEGV $$")
    assert (exited.exit_code, exited.signal, exited.reason) == (None, "SIGSEGV", None)


@pytest.mark.parametrize(
    ("argv", "options", "code"),
    [
        (["no-such-program"], {}, 127),
        (["/no/such/program"], {}, 127),
        (["/etc/passwd"], {}, 126),
        (["/etc"], {}, 126),
        (["true"], {"cwd": "/no/such/directory"}, 126),
        (["true"], {"user": "no-such-user"}, 126),
    ],
)
async def test_a_program_that_cannot_be_started_fails_as_in_a_shell(session, argv, options, code):
    with pytest.raises(SpawnFailed) as caught:
        await session.start(*argv, **options)
    assert caught.value.exit_code == code
    assert await session.guest.processes() == []


async def test_a_script_without_an_interpreter_line_runs_in_sh(session, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo ran $1\n")
    script.chmod(0o755)
    _, stdout, _ = await session.run(str(script), "well")
    assert stdout == b"ran well\n"


async def test_environment_goes_from_user_to_sandbox_to_command(session):
    env = {"A": "sandbox", "B": "sandbox"}
    spec_env = {"B": "command"}
    process_id = session.next_id()
    spec = CommandSpec(argv=("env",), env=spec_env)
    await session.guest.spawn(process_id, spec, env=env, default_user="0")
    await session.recorder.exit(process_id)
    lines = session.recorder.text(process_id).decode().splitlines()
    assert {"A=sandbox", "B=command", "HOME=/root"} <= set(lines)
    assert not any(line.startswith(("PYTHONHOME", "LC_ALL")) for line in lines)


@pytest.mark.parametrize("field", ["argv", "env", "cwd", "user"])
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_text_that_no_program_can_get_is_refused(session, field, text):
    value = {"argv": ("echo", text), "env": {"A": text}}.get(field, text)
    with pytest.raises(InvalidRequest, match=field):
        await session.guest.spawn(
            session.next_id(), CommandSpec(**{"argv": ("true",), field: value}), env={}, default_user="root"
        )
    assert await session.guest.processes() == []


async def test_starting_an_id_twice_starts_it_once(session, tmp_path):
    process_id = session.next_id()
    spec = CommandSpec(argv=("sh", "-c", f"echo x >> {tmp_path}/count"))
    pids = [await session.guest.spawn(process_id, spec, env={}, default_user="root") for _ in range(3)]
    await session.recorder.exit(process_id)
    assert len(set(pids)) == 1
    assert (tmp_path / "count").read_text() == "x\n"


async def test_a_background_child_that_keeps_the_pipe_does_not_hold_the_exit_back(session, tmp_path):
    began = time.monotonic()
    exited, stdout, _ = await session.run("sh", "-c", f"(sleep 0.7; echo late; touch {tmp_path}/late) & echo early")
    assert stdout == b"early\n"
    assert exited.exit_code == 0
    assert time.monotonic() - began < 0.6
    await asyncio.sleep(1)
    assert (tmp_path / "late").exists(), "the child died of a closed pipe"


async def test_a_background_child_that_writes_for_ever_does_not_hold_the_exit_back(session):
    process_id = await session.start("sh", "-c", "yes & echo $!")
    exited = await session.recorder.exit(process_id)
    assert exited.exit_code == 0
    text = session.recorder.text(process_id)
    os.kill(int(next(line for line in text.split(b"\n") if line.isdigit())), 9)


async def test_a_timeout_kills_the_whole_group(session, tmp_path):
    script = f"sleep 30 & echo $! > {tmp_path}/child; wait"
    exited, _, _ = await session.run("sh", "-c", script, timeout_seconds=0.3)
    assert (exited.exit_code, exited.signal, exited.reason) == (None, "SIGKILL", "timeout")
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        if not _is_alive(child):
            break
        await asyncio.sleep(0.05)
    assert not _is_alive(child)


async def test_signals_reach_the_group_and_say_so(session):
    process_id = await session.start("sleep", "30")
    await session.guest.signal(process_id, "SIGTERM")
    exited = await session.recorder.exit(process_id)
    assert (exited.signal, exited.reason) == ("SIGTERM", "killed")
    await session.guest.signal(process_id, "SIGKILL")  # killing what has ended succeeds


async def test_a_caught_signal_does_not_end_it(session):
    process_id = await session.start(
        "sh", "-c", "trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.05; done"
    )
    await session.recorder.until(lambda: session.recorder.text(process_id) == b"up\n")
    await session.guest.signal(process_id, "SIGUSR1")
    exited = await session.recorder.exit(process_id)
    assert (exited.exit_code, exited.reason) == (3, None)
    assert session.recorder.text(process_id) == b"up\ncaught\n"


async def test_unknown_signals_and_processes_are_refused(session):
    process_id = await session.start("sleep", "30")
    with pytest.raises(InvalidRequest):
        await session.guest.signal(process_id, "SIGNOPE")
    with pytest.raises(NotFound):
        await session.guest.signal(session.next_id(), "SIGTERM")
    with pytest.raises(FailedPrecondition, match="still runs"):
        await session.guest.forget(process_id)
    await session.guest.signal(process_id, "SIGKILL")


async def test_dispositions_and_mask_of_signals_are_the_defaults(session):
    _, stdout, _ = await session.run("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    assert [int(line.split()[1], 16) & ~(3 << 31) for line in stdout.splitlines()] == [0, 0]


async def test_a_process_leads_its_own_session_and_inherits_no_descriptors(session):
    _, stdout, _ = await session.run("sh", "-c", 'ls /proc/self/fd; cut -d " " -f 1,5,6 /proc/$$/stat; echo $$')
    *fds, ids, pid = stdout.decode().splitlines()
    assert fds == ["0", "1", "2", "3"]  # the last is the directory that ls reads
    assert set(ids.split()) == {pid}


async def test_stdin_is_written_in_order_and_closed(session):
    process_id = await session.start("sha256sum", stdin=True)
    block = os.urandom(100_000)
    for _ in range(20):
        await session.guest.write_stdin(process_id, block)
    await session.guest.close_stdin(process_id)
    await session.recorder.exit(process_id)
    assert session.recorder.text(process_id).split()[0].decode() == hashlib.sha256(block * 20).hexdigest()


async def test_stdin_that_nobody_reads_holds_the_writer_back(session):
    process_id = await session.start("sleep", "30", stdin=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await session.guest.write_stdin(process_id, bytes(4_000_000))
    assert session.agent.resident_kib < 60_000
    await session.guest.signal(process_id, "SIGKILL")
    await session.recorder.exit(process_id)


async def test_stdin_of_a_process_that_closed_it_is_refused(session):
    process_id = await session.start("sh", "-c", "exec <&-; echo closed; sleep 30", stdin=True)
    await session.recorder.until(lambda: session.recorder.text(process_id))
    with pytest.raises(FailedPrecondition):
        await session.guest.write_stdin(process_id, b"x")
    await session.guest.signal(process_id, "SIGKILL")


async def test_stdin_without_a_pipe_is_refused_and_reads_as_empty(session):
    exited, stdout, _ = await session.run("cat")
    assert (exited.exit_code, stdout) == (0, b"")
    process_id = await session.start("sleep", "30")
    with pytest.raises(FailedPrecondition):
        await session.guest.write_stdin(process_id, b"x")
    await session.guest.signal(process_id, "SIGKILL")


async def test_a_terminal_has_a_size_that_can_change(session):
    script = "tty >/dev/null && stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    process_id = await session.start("sh", "-c", script, pty=Pty(cols=80, rows=24))
    await session.recorder.until(lambda: b"ready" in session.recorder.text(process_id, "pty"))
    await session.guest.resize(process_id, Pty(cols=132, rows=50))
    exited = await session.recorder.exit(process_id)
    assert exited.exit_code == 0
    assert session.recorder.text(process_id, "pty") == b"24 80\r\nready\r\n50 132\r\n"


async def test_a_terminal_takes_typing_and_control_c(session):
    process_id = await session.start("sh", "-c", "read name; echo hello $name; sleep 30", pty=Pty(cols=80, rows=24))
    await session.guest.write_stdin(process_id, b"world\n")
    await session.recorder.until(lambda: b"hello world" in session.recorder.text(process_id, "pty"))
    await session.guest.write_stdin(process_id, b"\x03")
    exited = await session.recorder.exit(process_id)
    assert exited.signal == "SIGINT" or exited.exit_code == 130


async def test_closing_a_terminals_stdin_types_control_d(session):
    process_id = await session.start("cat", pty=Pty(cols=80, rows=24))
    await session.guest.write_stdin(process_id, b"line\n")
    await session.guest.close_stdin(process_id)
    exited = await session.recorder.exit(process_id)
    assert exited.exit_code == 0


async def test_resizing_without_a_terminal_is_refused(session):
    process_id = await session.start("sleep", "30")
    with pytest.raises(FailedPrecondition):
        await session.guest.resize(process_id, Pty(cols=80, rows=24))
    await session.guest.signal(process_id, "SIGKILL")


async def test_processes_are_kept_until_forgotten(session):
    process_id = await session.start("sh", "-c", "echo hi; exit 3")
    await session.recorder.exit(process_id)
    (status,) = await session.guest.processes()
    assert (status.process_id, status.is_running, status.exit_code) == (process_id, False, 3)
    assert status.offsets == {"stdout": 3, "stderr": 0}
    await session.guest.forget(process_id)
    await session.guest.forget(process_id)
    assert await session.guest.processes() == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
async def test_a_process_runs_as_the_user_with_its_groups_and_home(session):
    exited, stdout, stderr = await session.run("sh", "-c", "id -u; id -g; pwd", user="daemon")
    assert exited.exit_code == 0, stderr
    assert stdout == b"1\n1\n/usr/sbin\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
async def test_a_number_names_a_user_too(session):
    _, stdout, _ = await session.run("sh", "-c", "id -u; id -g; id -G", user="54321:65432")
    assert stdout == b"54321\n65432\n65432\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
async def test_a_user_that_kills_its_spawner_harms_only_itself(session):
    process_id = await session.start("sleep", "30", user="54321:54321")
    await session.run("sh", "-c", "sleep 0.3; kill -KILL -1", user="54321:54321")
    exited = await session.recorder.exit(process_id)
    assert exited.exit_code is None
    exited, stdout, _ = await session.run("echo", "again", user="54321:54321")
    assert (exited.exit_code, stdout) == (0, b"again\n")


async def test_a_hundred_processes_at_once_all_end(session):
    ids = await asyncio.gather(*(session.start("sh", "-c", f"echo {number}; exit {number}") for number in range(100)))
    exits = [await session.recorder.exit(process_id) for process_id in ids]
    assert [exited.exit_code for exited in exits] == list(range(100))
    assert [session.recorder.text(process_id) for process_id in ids] == [b"%d\n" % number for number in range(100)]


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
