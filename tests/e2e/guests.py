"""What tests run in guests, and how they read what it prints."""

import time
from collections.abc import Iterable

from space.sdk import Output, RolledBack, Sandbox

#: A counter that never stops, a listener that answers with the count, and both in one process.
COUNTER = r"""
import socket, sys, threading, time
count = 0
listener = socket.create_server(("127.0.0.1", 7000))
def serve():
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"%d" % count)
        connection.close()
threading.Thread(target=serve, daemon=True).start()
while True:
    count += 1
    print(count, flush=True)
    time.sleep(0.05)
"""
ASK = """
import socket, time
deadline = time.monotonic() + 20
while True:  # it may not have begun to listen
    try:
        connection = socket.create_connection(("127.0.0.1", 7000), timeout=10)
        break
    except ConnectionRefusedError:
        if time.monotonic() > deadline: raise
        time.sleep(0.05)
print(connection.recv(100).decode())
"""


def python(sandbox: Sandbox, program: str, *arguments: str) -> str:
    """Run a program in the guest; return what it printed."""
    result = sandbox.exec(["python3", "-c", program, *arguments], timeout=60)
    assert result.ok, result.stderr
    return result.stdout


def numbers(events: Iterable[object]) -> list[int]:
    """Return what a counter printed."""
    return [int(line) for line in b"".join(event.data for event in events if isinstance(event, Output)).split()]


def numbers_after_returns(events: Iterable[object]) -> list[int]:
    """Return what a counter printed, as somebody sees it who takes back what a recovered process has not done."""
    printed = b""
    for event in events:
        if isinstance(event, RolledBack):
            assert event.stdout_offset <= len(printed)
            printed = printed[: event.stdout_offset]
        elif isinstance(event, Output):
            assert event.offset == len(printed)
            printed += event.data
    return [int(line) for line in printed.split()]


def settled(sandbox: Sandbox, state: str, seconds: float = 60) -> None:
    """Wait for a state, whatever operations fail on the way."""
    deadline = time.monotonic() + seconds
    while sandbox.refresh().state != state:
        assert time.monotonic() < deadline, f"the sandbox is {sandbox.info.state}, not {state}"
        time.sleep(0.05)
