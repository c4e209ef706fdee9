"""The local terminal, while a remote one is shown in it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_ISCHR


def size() -> tuple[int, int]:
    """Return columns and rows of the terminal that this command writes to; 80 by 24 where there is none."""
    for descriptor in (1, 0, 2):
        try:
            found = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if found.columns > 0 and found.lines > 0:
            return found.columns, found.lines
    return 80, 24


@contextmanager
def raw(is_wanted: bool) -> Iterator[None]:
    """Pass every key through, Ctrl-C included, and put the terminal right again at the end."""
    if not is_wanted or not os.isatty(0):
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # not the default, which drops what was typed ahead
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def has_stdin_to_forward() -> bool:
    """Whether stdin is a file, a pipe or the like: neither a terminal, nor closed, nor /dev/null."""
    try:
        status = os.fstat(0)
    except OSError:
        return False
    is_null = S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    return not is_null and not os.isatty(0)


def note(text: str) -> None:
    """Tell the user something beside the command's own output."""
    print(f"space: {text}", file=sys.stderr, flush=True)
