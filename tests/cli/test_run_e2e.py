"""The command line against a real server and real machines."""

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    made = Instance(tmp_path_factory.mktemp("cli") / "space", templates_dir)
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.fixture
def sandbox_id(server: Instance) -> Iterator[str]:
    made = server.space("sandbox", "create").stdout.strip()
    yield made
    server.space("sandbox", "delete", made, check=False)


def start(server: Instance, *arguments: str, **options: object) -> "subprocess.Popen[bytes]":
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(server.argv(*arguments), env=server.environment, **settings)  # type: ignore[call-overload,no-any-return]


def running(server: Instance) -> list[str]:
    listed = json.loads(server.space("sandbox", "list", "-o", "json").stdout)["items"]
    return [item["id"] for item in listed if item["state"] not in ("deleting", "deleted")]


def test_a_program_prints_and_its_code_is_the_exit_code(server: Instance) -> None:
    done = server.space("run", "--", "python3", "-c", "print(6*7)")
    assert (done.stdout, done.stderr) == ("42\n", "")
    done = server.space("run", "-e", "A=b c", "--", "sh", "-c", "echo $A >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "b c\n")
    assert running(server) == []


@pytest.mark.parametrize(("script", "code"), [("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_a_signal_is_128_and_its_number(server: Instance, script: str, code: int) -> None:
    assert server.space("run", "--", "sh", "-c", script, check=False).returncode == code


def test_a_program_that_does_not_exist_is_127(server: Instance) -> None:
    done = server.space("run", "--", "nosuchprogram", check=False)
    assert done.returncode == 127
    assert "nosuchprogram" in done.stderr


def test_a_timeout_kills_the_group_and_is_said(server: Instance) -> None:
    began = time.monotonic()
    done = server.space("run", "--timeout", "1", "--", "sh", "-c", "sleep 60 & sleep 60", check=False)
    assert done.returncode == 137
    assert "timeout" in done.stderr
    assert time.monotonic() - began < 20


def test_a_template_that_does_not_exist_is_a_clear_error(server: Instance) -> None:
    done = server.space("run", "--template", "nosuch", "--", "true", check=False)
    assert done.returncode == 125
    assert "nosuch" in done.stderr
    assert "Traceback" not in done.stderr


def test_stdin_goes_through_whole(server: Instance, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as file:
        process = start(server, "run", "--", "sha256sum", stdin=file)
        out, err = process.communicate(timeout=120)
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest(), err


def test_bytes_that_are_no_text_come_out_whole(server: Instance) -> None:
    process = start(server, "run", "--", "python3", "-c", "import os; os.write(1, bytes(range(256)) * 5000)")
    out, _ = process.communicate(timeout=60)
    assert out == bytes(range(256)) * 5000


def test_ctrl_c_ends_the_command_and_the_sandbox(server: Instance) -> None:
    process = start(server, "run", "--", "sh", "-c", "echo started; sleep 600")
    assert process.stdout is not None
    assert process.stdout.read(8) == b"started\n"
    (sandbox_id,) = running(server)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 10
    assert sandbox_id not in running(server)


def test_a_terminal_is_a_terminal_of_the_right_size(server: Instance) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    process = start(server, "run", "-t", "--", "sh", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.write(master, b"stty size; tty; exit 3\n")
    shown = b""
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):  # EIO: the other end is closed
                shown += os.read(master, 4096)
    os.close(master)
    assert process.wait(1) == 3, shown
    assert b"33 111" in shown
    assert b"/dev/pts/" in shown


def test_files_and_directories_go_in_and_come_back(server: Instance, sandbox_id: str, tmp_path: Path) -> None:
    source = tmp_path / "data"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "x").write_bytes(os.urandom(300_000))
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    one = tmp_path / "one.txt"
    one.write_text("one")

    server.space("sandbox", "cp", str(source), str(one), f"{sandbox_id}:/tmp/into/")
    ran = server.space("sandbox", "exec", sandbox_id, "--", "/tmp/into/data/run.sh")
    assert ran.stdout == "ran\n"
    server.space(
        "sandbox", "cp", f"{sandbox_id}:/tmp/into/data", f"{sandbox_id}:/tmp/into/one.txt", f"{tmp_path}/back/"
    )
    assert (tmp_path / "back/data/sub/x").read_bytes() == (source / "sub/x").read_bytes()
    assert (tmp_path / "back/data/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back/one.txt").read_text() == "one"
    assert server.space("sandbox", "cp", f"{sandbox_id}:/tmp/into/one.txt", "-").stdout == "one"
    missing = server.space("sandbox", "cp", f"{sandbox_id}:/nosuch", str(tmp_path / "y"), check=False)
    assert missing.returncode == 1
    assert not (tmp_path / "y").exists()


def test_stdin_may_be_copied_in(server: Instance, sandbox_id: str) -> None:
    process = start(server, "sandbox", "cp", "-", f"{sandbox_id}:/tmp/piped", stdin=subprocess.PIPE)
    _, err = process.communicate(b"through a pipe", timeout=60)
    assert process.returncode == 0, err
    assert server.space("sandbox", "exec", sandbox_id, "--", "cat", "/tmp/piped").stdout == "through a pipe"


def test_a_guests_archive_cannot_write_outside_the_target(server: Instance, sandbox_id: str, tmp_path: Path) -> None:
    server.space("sandbox", "exec", sandbox_id, "--", "sh", "-c", "mkdir /tmp/bad; ln -s ../../../etc /tmp/bad/up")
    done = server.space("sandbox", "cp", f"{sandbox_id}:/tmp/bad", str(tmp_path / "bad"), check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bad" / "up").exists()


def test_tokens_are_made_listed_used_and_revoked(server: Instance) -> None:
    made = json.loads(server.space("token", "create", "ci", "-s", "read-only", "--expires", "1h", "-o", "json").stdout)
    token_id, secret = made["id"], made["token"]
    assert token_id in server.space("token", "list").stdout
    api_url = f"http://{server.environment['SPACE_LISTEN']}"
    environment = server.environment | {"SPACE_API_URL": api_url, "SPACE_API_TOKEN": secret}

    def listing() -> "subprocess.CompletedProcess[str]":
        argv = server.argv("sandbox", "list")
        return subprocess.run(argv, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert listing().returncode == 0
    refused = subprocess.run(
        server.argv("run", "--", "true"), env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert refused.returncode == 125
    assert secret not in refused.stderr
    server.space("token", "revoke", token_id)
    deadline = time.monotonic() + 5
    while listing().returncode == 0:
        assert time.monotonic() < deadline, "revoked tokens stop working within five seconds"


def test_a_killed_server_is_not_noticed_but_by_the_clock(tmp_path: Path, templates_dir: Path) -> None:
    """The proof of the issue: kill -9 of all of SPACE's processes while `space run` prints, then a start."""
    server = Instance(tmp_path / "space", templates_dir)
    try:
        server.up()
        script = "for i in $(seq 1 30); do echo $i; sleep 0.3; done"
        process = start(server, "run", "--", "sh", "-c", script)
        time.sleep(3)
        for _ in range(2):
            server.kill_9()
            time.sleep(1)
            server.up()
            time.sleep(1.5)
        out, err = process.communicate(timeout=120)
        assert out.split() == [b"%d" % number for number in range(1, 31)], err
        assert process.returncode == 0
        assert running(server) == []
    finally:
        server.remove()
