"""What works on this machine: each runtime, and each thing that SPACE needs; with a remedy for every "no"."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from space.app.compose import runtimes_of
from space.config import Settings
from space.core.node import Capabilities
from space.host.instance import Instance
from space.runtimes.doctor import probe_all
from space.runtimes.kvm import unavailable_runtimes

#: program → Debian package that brings it
PROGRAMS = {"ip": "iproute2", "nft": "nftables", "mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"}


def doctor(settings: Settings | None = None) -> list[dict[str, Any]]:
    """Return a row for each check: `kind`, `name`, `ok`, `reason` and, for what is wrong, `remedy`."""
    settings = settings or Settings()
    instance_file = settings.data_dir / "instance-id"
    try:
        instance = Instance(instance_file.read_text().strip())
    except OSError:
        instance = Instance("0" * 16)
    probed = asyncio.run(probe_all([*runtimes_of(instance), *unavailable_runtimes()]))
    return [*map(_runtime_row, probed), *_host_rows(settings)]


def _runtime_row(found: Capabilities) -> dict[str, Any]:
    reason = found.version if found.is_available else found.reasons.get("available", "not available")
    why, _, remedy = (reason or "").partition("; ")
    return {
        "kind": "runtime",
        "name": found.runtime,
        "ok": found.is_available,
        "reason": why or None,
        "remedy": None if found.is_available else remedy or None,
        "capabilities": {
            name: getattr(found, name) for name in ("pause", "memory_snapshot", "diff_snapshot", "lazy_restore")
        },
        "missing": dict(found.reasons),
    }


def _host_rows(settings: Settings) -> Iterator[dict[str, Any]]:
    is_root = os.geteuid() == 0
    yield _row("root", is_root, "runs as root" if is_root else "not root", "run as root, or with sudo")
    for program, package in PROGRAMS.items():
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        yield _row(program, path is not None, path or "not found", f"apt-get install {package}, or run ./quickstart")
    has_loop = Path("/dev/loop-control").exists()
    yield _row("loop devices", has_loop, "/dev/loop-control", "load the kernel module loop: modprobe loop")
    place = next(path for path in (settings.data_dir, *settings.data_dir.parents) if path.exists())
    free_mib = shutil.disk_usage(place).free >> 20
    yield _row("disk", free_mib >= 2048, f"{free_mib} MiB free below {place}", "free 2 GiB, or set SPACE_DATA_DIR")
    has_base = (settings.data_dir / "templates" / "names" / "base").exists()
    yield _row("template base", has_base, "built" if has_base else "not built yet", "run ./quickstart")


def _row(name: str, ok: bool, reason: str, remedy: str) -> dict[str, Any]:
    return {"kind": "host", "name": name, "ok": ok, "reason": reason, "remedy": None if ok else remedy}
