"""How runsc is called: the flag set that was found to work, and nothing beside it (gvisor.md §0).

One call costs 24 ms before it does anything, so a machine's life makes as few as it can: one to start it, none to
watch it (a pidfd does) and none to end it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from space.host.process import Completed, run

#: runsc looks an id up by prefix: with `d1` and `d10` running, deleting `d1` fails as "ambiguous" and leaves it
#: running (gvisor.md, trap 4).  So an id that is not of the one length never reaches it.
ID = re.compile(r"[a-z0-9]{35}")
#: Kernels since 6.x show /proc/sys/net/core in every namespace, and this runsc then takes the slot for the host's own
#: namespace and refuses (google/gvisor#10704; trap 1).  Can go with a runsc from after 2024-08.
HIDDEN = ("/proc/sys/net",)
#: Never `exec`: a checkpoint during one succeeds and cannot be restored (trap 3); all goes through the agent.
VERBS = frozenset({"run", "restore", "kill", "checkpoint", "--version"})
#: Without `-leave-running` a checkpoint that fails kills the machine (trap 2).
CHECKPOINT = ("checkpoint", "-leave-running", "-compression=none")
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}


class Runsc:
    """The runsc of one instance: which binary, and the directory of its state."""

    def __init__(self, *, program: str, root: Path, hardened: bool = False) -> None:
        self.program = program
        self.root = root
        self.hardened = hardened

    def argv(
        self, *command: str, log: Path | None = None, filestore: Path | None = None, flags: Sequence[str] = ()
    ) -> list[str]:
        """Return a whole command line.

        The overlay covers the root and every other writable mount (`all`), which is `/tmp`.
        """
        return [
            self.program,
            f"--root={self.root}",
            "--platform=systrap",
            "--network=sandbox",
            "--net-disconnect-ok",
            f"--overlay2=all:dir={filestore}" if filestore else "--overlay2=none",
            "--host-uds=none",
            "--cpu-num-from-quota",
            *(["--directfs=false"] if self.hardened else []),
            *([f"--log={log}"] if log else []),
            *flags,
            *command,
        ]

    async def call(
        self,
        *command: str,
        log: Path | None = None,
        filestore: Path | None = None,
        flags: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        read_only: Sequence[Path] = (),
        timeout: float = 30,
    ) -> Completed:
        """Run a command to its end; raises `ProcessFailed`.

        `read_only` are directories that it and what it starts cannot change: runsc itself mounts an `ro` bind writable
        for its file server, and keeps only the guest from writing.
        """
        if command[0] not in VERBS or (command[0] == "checkpoint" and command[: len(CHECKPOINT)] != CHECKPOINT):
            raise ValueError(f"runsc {command[0]} is not called from here; see the traps above")
        argv = self.argv(*command, log=log, filestore=filestore, flags=flags)
        return await run(argv, env=ENV, timeout=timeout, pass_fds=pass_fds, hidden=HIDDEN, read_only=read_only)

    def control_socket(self, machine_id: str) -> Path:
        """Return where the machine's sentry listens; see `sentry.py`."""
        return self.root / f"runsc-{machine_id}.sock"

    def files_of(self, machine_id: str) -> Sequence[Path]:
        """Return runsc's own files of a machine: state, lock, control socket."""
        return sorted(path for path in self.root.glob("*") if machine_id in path.name) if self.root.is_dir() else []


def check_id(machine_id: str) -> None:
    """Raise `ValueError` for an id that runsc could confuse with another."""
    if not ID.fullmatch(machine_id):
        raise ValueError(f"machine id {machine_id!r} is not 35 characters of a-z and 0-9")
