"""What an operation is doing, on one line of a terminal, while somebody waits for it."""

import sys
from typing import TYPE_CHECKING

from space.cli import terminal

if TYPE_CHECKING:
    from space.sdk import Operation

MIB = 1 << 20
BYTES = (("bytes_read", "read"), ("bytes_new", "new"), ("bytes_uploaded", "uploaded"))


class Progress:
    """Shows operations that take more than a second; it is called with their states about once a second.

    A terminal's line is written over and cleared at the end; elsewhere each new step gets a line of its own.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, operation: "Operation") -> None:
        if self._is_quiet or operation.is_final:
            return
        if self._is_terminal:
            self._write_over(describe(operation))
        elif (step := f"{operation.sandbox_id} {operation.kind}: {operation.step}") != self._shown:
            self._shown = step
            terminal.note(describe(operation))

    def clear(self) -> None:
        """Leave the line as it was before."""
        if self._is_terminal and self._shown:
            self._write_over("")

    def _write_over(self, text: str) -> None:
        text = text[: max(20, terminal.size()[0] - 1)]
        sys.stderr.write("\r" + text.ljust(len(self._shown)) + ("\r" if not text else ""))
        sys.stderr.flush()
        self._shown = text


def describe(operation: "Operation") -> str:
    """Say what an operation is doing: its step, how many there are, and the bytes that it has counted."""
    progress = operation.progress
    parts = [f"{operation.sandbox_id} {operation.kind}"]
    step = (operation.step or operation.status).replace("_", " ")
    if count := progress.get("step_count"):
        step += f" ({min((progress.get('steps_done') or 0) + 1, count)} of {count})"
    parts.append(step)
    counted = [f"{value / MIB:.1f} MiB {word}" for name, word in BYTES if (value := progress.get(name)) is not None]
    if counted:
        parts.append(", ".join(counted))
    return ": ".join(parts)
