"""The OCI bundle of a machine: what runsc is told about it.

Capabilities are Docker's default set: in gVisor they bound what root in the guest may ask of the guest's kernel, not
of the host's.  Nothing of the host is mounted but the template and the agent's directory, both read-only; what the
guest writes goes to overlays in its filestore.  The agent's token is in none of it: it comes through a pipe.

`/tmp` is an overlay over an empty directory, because gVisor otherwise puts a tmpfs there, and then a download counts
as memory.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from space.core.node import MachineSpec
from space.host.netns import path_of

AGENT_DIRECTORY = "/.space"
CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
#: For the agent alone, to name the machine after a restore: what is in neither the bounding nor the inheritable set is
#: lost with the first `exec`, so no program of the guest has it, and root in the guest cannot trace who does.
AGENT_CAPABILITIES = (*CAPABILITIES, "CAP_SYS_ADMIN")
MAX_FILES = 65536


def write(spec: MachineSpec, *, argv: Sequence[str], env: Mapping[str, str]) -> Path:
    """Write the bundle below `spec.state_dir`; return its directory.

    It is named after the machine, so that the command line of each of the machine's processes tells whose it is.
    """
    bundle = spec.state_dir / spec.machine_id
    bundle.mkdir(mode=0o700, parents=True, exist_ok=True)
    _empty(spec).mkdir(exist_ok=True)
    _empty(spec).chmod(0o1777)
    (bundle / "config.json").write_text(json.dumps(config(spec, argv=argv, env=env)))
    return bundle


def config(spec: MachineSpec, *, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return the runtime specification (opencontainers/runtime-spec 1.0.2) of a machine."""
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": str(spec.rootfs), "readonly": False},  # the overlay takes the writes
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": "/",
            "noNewPrivileges": False,  # su and sudo work in the guest
            "capabilities": {
                **dict.fromkeys(("bounding", "inheritable"), CAPABILITIES),
                **dict.fromkeys(("effective", "permitted"), AGENT_CAPABILITIES),
            },
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "hard": MAX_FILES, "soft": MAX_FILES},
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
            ],
        },
        "mounts": _mounts(spec),
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                {"type": "network", "path": str(path_of(spec.slot.netns))},
            ],
            "cgroupsPath": spec.slot.cgroup,
        },
    }


def agent_dir(bundle: Path) -> Path:
    """Return the directory that a machine has as its agent's."""
    mounts = json.loads((bundle / "config.json").read_text())["mounts"]
    return Path(next(mount["source"] for mount in mounts if mount["destination"] == AGENT_DIRECTORY))


def _mounts(spec: MachineSpec) -> list[dict[str, Any]]:
    options = ["nosuid", "noexec", "nodev"]
    shared = [*options, "mode=1777", f"size={max(1, spec.resources.memory_mib // 2)}m"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": options},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", *options]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shared},  # noqa: S108
        {"destination": "/tmp", "type": "bind", "source": str(_empty(spec)), "options": ["bind", "nosuid", "nodev"]},  # noqa: S108
        _read_only(spec.agent_dir, AGENT_DIRECTORY),
    ]


def _empty(spec: MachineSpec) -> Path:
    return spec.state_dir / spec.machine_id / "tmp"


def _read_only(source: Path, destination: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["bind", "ro", "nosuid", "nodev"],
    }
