"""Whether gVisor works on this host, found by trying."""

import os
import re
import shutil

from space.core.node import Capabilities
from space.host.process import ProcessFailed
from space.runtimes.gvisor.command import Runsc

HOW_TO_GET_IT = "install Debian's runsc: apt-get install -t bookworm-backports runsc (./quickstart does)"
MIN_KERNEL = (4, 14, 77)  # systrap's, from the project's documentation


async def probe(runsc: Runsc) -> Capabilities:
    """Look for runsc, the rights and the tools that it needs, and ask it for its version."""
    reason, version = None, None
    if shutil.which(runsc.program) is None:
        reason = f"runsc is not installed; {HOW_TO_GET_IT}"
    else:
        try:
            said = (await runsc.call("--version", timeout=5)).stdout.decode(errors="replace")
        except (ProcessFailed, OSError) as error:
            reason = f"runsc does not run: {error}"
        else:
            match = re.search(r"version (\S+)", said)
            version = match[1] if match else "unknown"
    if reason is None:
        reason = _missing()
    no = {"diff_snapshot": "gVisor writes whole memory images", "lazy_restore": "needs a newer runsc"}
    return Capabilities(
        runtime="gvisor",
        is_available=reason is None,
        version=version,
        pause=reason is None,
        memory_snapshot=reason is None,
        reasons={"available": reason, **no} if reason else no,
    )


def _missing() -> str | None:
    """Return what this host lacks, and the remedy; None if nothing."""
    if os.geteuid() != 0:
        return "sandboxes need root; run the node with sudo"
    if os.uname().machine not in ("x86_64", "aarch64"):
        return f"gVisor does not run on {os.uname().machine}"
    kernel = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:3])
    if kernel < MIN_KERNEL:
        return f"the kernel {os.uname().release} is older than {'.'.join(map(str, MIN_KERNEL))}; upgrade it"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables"), ("mkfs.ext4", "e2fsprogs")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; apt-get install {package}"
    return None
