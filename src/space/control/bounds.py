"""What a command or a path may be, whichever dialect it came through."""

from space.core.command import CommandSpec
from space.core.errors import InvalidRequest, PayloadTooLarge

MAX_ARGV = 4096
MAX_ARGV_BYTES = 262_144
MAX_ENV = 256
MAX_ENV_BYTES = 262_144
MAX_PATH_BYTES = 4096
MAX_TIMEOUT_SECONDS = 30 * 24 * 3600
MAX_TERMINAL = 4096  # columns or rows


def check_command(spec: CommandSpec) -> None:
    """Raise `InvalidRequest` or `PayloadTooLarge`, naming the field, unless a guest can be asked to run this."""
    if not spec.argv or not spec.argv[0]:
        raise InvalidRequest("argv needs a program to run", field="argv")
    if len(spec.argv) > MAX_ARGV:
        raise PayloadTooLarge(f"argv has at most {MAX_ARGV} entries", field="argv", limit=MAX_ARGV)
    if _size(spec.argv, "argv") > MAX_ARGV_BYTES:
        raise PayloadTooLarge(f"argv has at most {MAX_ARGV_BYTES} bytes", field="argv", limit=MAX_ARGV_BYTES)
    if len(spec.env) > MAX_ENV:
        raise PayloadTooLarge(f"env has at most {MAX_ENV} entries", field="env", limit=MAX_ENV)
    if _size((*spec.env, *spec.env.values()), "env") > MAX_ENV_BYTES:
        raise PayloadTooLarge(f"env has at most {MAX_ENV_BYTES} bytes", field="env", limit=MAX_ENV_BYTES)
    if any(not key or "=" in key for key in spec.env):
        raise InvalidRequest("a name in env is not empty and has no =", field="env")
    if spec.cwd is not None:
        check_path(spec.cwd, field="cwd")
    if spec.user is not None and (not spec.user or len(spec.user) > 64 or _size((spec.user,), "user") > 64):
        raise InvalidRequest("user is a name of 1 to 64 characters", field="user")
    if not 0 <= spec.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(f"timeout_seconds is 0 to {MAX_TIMEOUT_SECONDS}", field="timeout_seconds")
    if spec.pty is not None:
        check_terminal(spec.pty.cols, spec.pty.rows)


def check_terminal(cols: int, rows: int) -> None:
    """Raise `InvalidRequest` for a terminal of no possible size."""
    for field, value in (("cols", cols), ("rows", rows)):
        if not 1 <= value <= MAX_TERMINAL:
            raise InvalidRequest(f"{field} is 1 to {MAX_TERMINAL}", field=field, limit=MAX_TERMINAL)


def check_path(path: str, *, field: str = "path") -> None:
    """Raise `InvalidRequest` unless this can be a path in a guest.

    `..` is left to the guest: it has only its own files, and only it knows its links.
    """
    if not path.startswith("/"):
        raise InvalidRequest(f"{field} is absolute: it begins with /", field=field)
    if _size((path,), field) > MAX_PATH_BYTES:
        raise InvalidRequest(f"{field} has at most {MAX_PATH_BYTES} bytes", field=field, limit=MAX_PATH_BYTES)


def _size(texts: tuple[str, ...], field: str) -> int:
    """Return the bytes that these take in the guest; refuses what cannot be passed to it."""
    joined = "".join(texts)
    if "\0" in joined:
        raise InvalidRequest(f"{field} has no NUL bytes", field=field)
    try:
        return len(joined.encode()) + len(texts)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is Unicode text", field=field) from None
