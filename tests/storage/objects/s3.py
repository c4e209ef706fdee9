"""An S3 server of our own: the npm package s3rver, on a loopback port."""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "s3rver"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "space-tests"
BUCKET = "space"
#: s3rver accepts only these.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[dict[str, str]]:
    """Run a server with the bucket `space`; give the variables with which obstore reaches it."""
    port = free_port()
    with s3_process(directory, port):
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@contextlib.contextmanager
def s3_process(directory: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server on this port; whoever breaks it starts the next on the same directory."""
    program = _installed()
    argv = [
        str(program), "--directory", str(directory), "--address", "127.0.0.1", "--port", str(port),
        "--silent", "--configure-bucket", BUCKET,
    ]  # fmt: skip
    # Its tokens for long listings are made with a cipher that OpenSSL 3 calls old.
    environment = {**os.environ, "NODE_OPTIONS": "--openssl-legacy-provider"}
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(argv, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        _wait_until_it_answers(server, port)
        yield server
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _installed() -> Path:
    """Install s3rver once for each lock file; return its program."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}; ./test installs it")
    lock = (PACKAGE / "package-lock.json").read_bytes()
    target = CACHE / f"s3rver-{sha256(lock).hexdigest()[:16]}"
    program = target / "node_modules/.bin/s3rver"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "s3rver.lock").open("w") as guard:  # several test processes may want it at once
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(PACKAGE / name, target)
            argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            made = subprocess.run(argv, cwd=target, capture_output=True, text=True, timeout=240, check=False)
            assert made.returncode == 0, made.stderr
            (target / "complete").touch()
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(server: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "s3rver ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("s3rver does not answer")
