"""Who the machine is: after a restore or a fork it must become another one, in its kernel, its files and by chance."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys

from space_guest import machine
from space_guest.request import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_HOSTS = 64 * 1024
OWN_ADDRESS = "127.0.1.1"  #: Debian's, for the machine's own name
HOSTNAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


class Identity:
    """Name, machine id, clock and randomness.

    All but the randomness belong to the machine's first process: an agent that is another one's guest, as in tests,
    leaves them alone.
    """

    def __init__(self, etc: str = "/etc", *, is_first_process: bool | None = None) -> None:
        self._etc = etc
        self._is_first_process = os.getpid() == 1 if is_first_process is None else is_first_process

    def check(self, args: dict[str, Any]) -> None:
        """Raise `Refused` for what could not be applied, before anything is."""
        hostname = args.get("hostname")
        if hostname is not None and not (
            isinstance(hostname, str) and len(hostname) <= 64 and HOSTNAME.fullmatch(hostname)
        ):
            raise Refused("invalid_request", "not a host name")
        if args.get("hex") is not None:
            machine.entropy(args)
        if args.get("unix_seconds") is not None:
            machine.time_of_day(args)

    def apply(self, args: dict[str, Any]) -> None:
        """Become what was checked; raises `Refused`, having changed nothing, where the kernel forbids to be renamed."""
        hostname = args.get("hostname")
        if self._is_first_process and hostname is not None:
            try:
                socket.sethostname(hostname)
            except OSError as error:
                raise Refused("unsupported", errno=error.errno) from None
        if args.get("hex") is not None:
            machine.add_entropy(args)
            if (loaded := sys.modules.get("random")) is not None:
                loaded.seed(os.urandom(32))
        if self._is_first_process:
            if args.get("unix_seconds") is not None:
                with contextlib.suppress(Refused):  # a kernel that takes the host's time has the right one
                    machine.set_clock(args)
            self.write_files()

    def write_files(self) -> None:
        """Write the machine's name, and a new machine id; what the guest has made impossible stays as it is."""
        if not self._is_first_process:
            return
        name = socket.gethostname()
        _replace(f"{self._etc}/hostname", f"{name}\n")
        _replace(f"{self._etc}/machine-id", f"{os.urandom(16).hex()}\n", mode=0o444)
        self._write_hosts(name)

    def _write_hosts(self, name: str) -> None:
        path = f"{self._etc}/hosts"
        before = _read(path)
        if before is None:
            return
        kept = [line for line in before.splitlines() if line.split()[:1] != [OWN_ADDRESS]]
        if not any("localhost" in line.split() for line in kept):
            kept.insert(0, "127.0.0.1\tlocalhost")
        after = "\n".join([*kept, f"{OWN_ADDRESS}\t{name}", ""])
        if after != before:
            _replace(path, after)


def _read(path: str) -> str | None:
    """Return a small file's text, "" if there is none; None for anything else: a pipe there must not stop the agent."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError:
        return None
    try:
        data = os.read(fd, MAX_HOSTS + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    return data.decode("utf-8", "surrogateescape") if len(data) <= MAX_HOSTS else None


def _replace(path: str, text: str, *, mode: int = 0o644) -> None:
    """Put a file in the place of whatever is there, links and pipes included."""
    temporary = f"{path}.space-new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            os.write(fd, text.encode("utf-8", "surrogateescape"))
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
