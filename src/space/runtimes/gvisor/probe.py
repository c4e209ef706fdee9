"""Whether gVisor works on this host, found by running a program in it."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import uuid
from pathlib import Path
from typing import Any

from space.core.node import Capabilities
from space.host.process import ProcessFailed
from space.runtimes.gvisor import found
from space.runtimes.gvisor.command import ENV, Runsc
from space_guest.protocol import VERSION

HOW_TO_GET_IT = "install Debian's runsc: apt-get install -t bookworm-backports runsc (./quickstart does)"
MIN_KERNEL = (4, 14, 77)  # systrap's, from the project's documentation
TRIAL_SECONDS = 0.8
TOOLS = (("ip", "iproute2"), ("nft", "nftables"), ("mkfs.ext4", "e2fsprogs"))
NO = {
    "diff_snapshot": "gVisor writes whole memory images",
    "lazy_restore": "needs a newer runsc than Debian's",
}


async def probe(runsc: Runsc) -> Capabilities:
    """Look for what gVisor needs, then run `/bin/true` in it.

    A trial that does not end in time proves nothing on a busy host, so only one that fails counts as a "no".
    """
    version, reason = None, _missing(runsc.program)
    if reason is None:
        version, reason = await _version(runsc)
    if reason is None:
        reason = await _trial(runsc)
    return Capabilities(
        runtime="gvisor",
        is_available=reason is None,
        version=version,
        pause=reason is None,
        memory_snapshot=reason is None,
        snapshot_format=snapshot_format(version, hardened=runsc.hardened) if reason is None else None,
        reasons={"available": reason, **NO} if reason else NO,
    )


def snapshot_format(version: str | None, *, hardened: bool) -> str:
    """Return what must be the same where a checkpoint is made and where it is restored.

    runsc promises nothing across versions; the flags are those that a checkpoint depends on; the agent in a restored
    machine goes on speaking the protocol of then.
    """
    flags = ["systrap", "overlay-all-dir", *(["hardened"] if hardened else [])]
    return f"gvisor/{version}/{os.uname().machine}/{'+'.join(flags)}/agent-{VERSION}"


def _missing(program: str) -> str | None:
    """Return what this host lacks, and the remedy; None if nothing."""
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"gVisor does not run on {os.uname().machine}; use an x86-64 or arm64 host"
    kernel = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:3])
    if kernel < MIN_KERNEL:
        return f"the kernel {os.uname().release} is older than {'.'.join(map(str, MIN_KERNEL))}; upgrade it"
    if shutil.which(program, path=ENV["PATH"]) is None:
        return f"runsc is not installed; {HOW_TO_GET_IT}"
    for tool, package in TOOLS:
        if shutil.which(tool, path=ENV["PATH"]) is None:
            return f"{tool} is not installed; apt-get install {package}"
    return None if os.geteuid() == 0 else "sandboxes need root; run the node with sudo"


async def _version(runsc: Runsc) -> tuple[str | None, str | None]:
    """Return runsc's version, or why it does not tell."""
    try:
        said = (await runsc.call("--version", timeout=5)).stdout.decode(errors="replace")
    except (ProcessFailed, OSError) as error:
        return None, f"runsc does not run ({error}); {HOW_TO_GET_IT}"
    match = re.search(r"version (\S+)", said)
    return match[1] if match else "unknown", None


async def _trial(runsc: Runsc) -> str | None:
    """Run the host's `/bin/true` on the host's root, read-only, without a network; return why that failed."""
    with tempfile.TemporaryDirectory(prefix="space-probe-") as directory:
        trial = Runsc(program=runsc.program, root=Path(directory, "state"), hardened=runsc.hardened)
        config: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "root": {"path": "/", "readonly": True},
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": [], "cwd": "/"},
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
        }
        Path(directory, "config.json").write_text(json.dumps(config))  # noqa: ASYNC240 - a few bytes in a tmpfs
        run = ("run", f"-bundle={directory}", f"probe{uuid.uuid4().hex[:30]}")
        try:
            await trial.call(*run, timeout=TRIAL_SECONDS, flags=("--network=none", "--ignore-cgroups"))
        except ProcessFailed as error:
            # Kills what detached itself from a call that was killed for taking too long.
            await asyncio.to_thread(_kill_all, trial.root)
            if error.returncode is not None:
                said = (error.stderr.strip().splitlines() or [str(error)])[-1]
                return f"a trial sandbox did not run: {said[:300]}; runsc --debug --debug-log=/tmp/runsc/ tells more"
    return None


def _kill_all(root: Path) -> None:
    for process in found.processes(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
