"""Show a command's streams here as if it ran here: bytes to the same descriptors, stdin, window size, exit code."""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from space.cli import terminal
from space.cli.failure import NOT_RUN
from space.sdk import Command, Output, ProcessExited, ProcessStarted, ResyncRequired, SandboxLost, SpaceError

STDIN_PIECE = 64 * 1024


def follow(command: Command, *, program: str, forwards_stdin: bool, is_terminal: bool) -> int:
    """Show the command until it ends; return the exit code to leave with.  `program` names it in messages."""
    with terminal.raw(is_terminal and forwards_stdin), _window(command, is_terminal):
        code = _show(command, forwards_stdin)
    reason = command.exit.reason if command.exit is not None else None
    if reason and reason not in ("exited", "killed"):
        terminal.note(f"{program}: {reason.removeprefix('spawn_failed: ')}")
    return code


def _show(command: Command, forwards_stdin: bool) -> int:
    for event in command:
        match event:
            case Output():
                write_all(2 if event.stream == "stderr" else 1, event.data)
            case ProcessStarted() if forwards_stdin:
                threading.Thread(target=_forward_stdin, args=(command,), daemon=True).start()
            case ProcessExited():
                return exit_code_of(event)
            case SandboxLost():
                terminal.note(f"the sandbox was lost while the command ran: {event.reason}")
            case ResyncRequired():
                terminal.note("output was lost to the journal's size limit; it goes on from the oldest that is kept")
            case _:
                pass
    return NOT_RUN


def exit_code_of(event: ProcessExited) -> int:
    """Return the code a shell would: the command's own, or 128 and the number of the signal that ended it."""
    if event.signal is not None:
        try:
            return 128 + signal.Signals[event.signal].value
        except KeyError:
            return 128
    return NOT_RUN if event.exit_code is None else event.exit_code


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, past Python's buffers; raises `BrokenPipeError` when nobody reads any more."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _forward_stdin(command: Command) -> None:
    """Send stdin to the process until either ends.  Runs in a daemon thread: a read cannot be interrupted."""
    try:
        while piece := os.read(0, STDIN_PIECE):
            command.write(piece)
        command.close_stdin()
    except SpaceError as error:
        if error.code not in ("failed_precondition", "not_found"):  # it ended, or closed its stdin
            terminal.note(f"stdin is no longer forwarded: {error}")
    except OSError:
        pass


@contextmanager
def _window(command: Command, is_terminal: bool) -> Iterator[None]:
    """Tell the remote terminal when this one changes its size.

    A signal handler may come in the middle of anything, so it only wakes the thread that sends.
    """
    if not is_terminal or not hasattr(signal, "SIGWINCH"):
        yield
        return
    changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    thread = threading.Thread(target=_resize_on, args=(command, changes.get), daemon=True)
    before = signal.signal(signal.SIGWINCH, lambda *_: changes.put(True))
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        changes.put(False)


def _resize_on(command: Command, next_change: Callable[[], bool]) -> None:
    while next_change():
        try:
            command.resize(*terminal.size())
        except SpaceError:
            continue  # the next change, or the end of the command, settles it
