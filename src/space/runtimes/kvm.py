"""Runtimes that are planned but not part of this version, so that `space doctor` can say so, and why.

What is said of KVM are facts of this host: the device opening proves nothing (microvm.md §4), so the processor's
flags and PVM, under which a stock guest kernel is emulated one instruction at a time, are looked at as well.
"""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from space.core.errors import Unsupported
from space.core.node import Capabilities, MachineHandle, MachineSpec
from space.core.ports import Machine, Runtime

NOT_YET = "not part of this version of SPACE yet; use gvisor"


def why_no_kvm(*, cpuinfo: str, is_pvm: bool, has_device: bool, is_allowed: bool) -> str | None:
    """Say why KVM cannot run guests, and the remedy; None if nothing speaks against it."""
    if is_pvm:
        return "KVM is PVM's here (/sys/module/kvm_pvm), which boots no stock kernel; use a host with VT-x or AMD-V"
    if platform.machine() == "x86_64" and not {"vmx", "svm"} & set(cpuinfo.split()):
        return "the processor shows neither vmx nor svm; enable virtualization in the firmware, or nested on the host"
    if not has_device:
        return "/dev/kvm is missing; load kvm_intel or kvm_amd"
    if not is_allowed:
        return "/dev/kvm may not be opened; run the node as root"
    return None


def kvm_of_this_host() -> str | None:
    """Say why KVM cannot run guests on this host; None if nothing speaks against it."""
    device = Path("/dev/kvm")
    return why_no_kvm(
        cpuinfo=Path("/proc/cpuinfo").read_text(),
        is_pvm=Path("/sys/module/kvm_pvm").exists(),
        has_device=device.exists(),
        is_allowed=os.access(device, os.R_OK | os.W_OK),
    )


class Planned:
    """A runtime that this version only knows by name."""

    def __init__(self, name: str, *, needs_kvm: bool = True) -> None:
        self._name = name
        self._needs_kvm = needs_kvm

    @property
    def name(self) -> str:
        return self._name

    async def probe(self) -> Capabilities:
        reasons = {"available": NOT_YET}
        no_kvm = kvm_of_this_host() if self._needs_kvm else None
        if no_kvm:
            reasons["kvm"] = no_kvm
        return Capabilities(runtime=self._name, is_available=False, reasons=reasons)

    async def start(self, spec: MachineSpec, *, snapshot: Path | None = None) -> Machine:
        raise Unsupported(f"{self._name} is {NOT_YET}", feature=self._name)

    async def recover(self, handle: MachineHandle, spec: MachineSpec) -> Machine | None:
        return None

    async def sweep(self, keep: frozenset[str]) -> Sequence[str]:
        return []


def unavailable_runtimes() -> list[Runtime]:
    """Return every runtime that `space doctor` names beside those that exist."""
    return [Planned("firecracker"), Planned("qemu"), Planned("qemu-tcg", needs_kvm=False), Planned("cloud-hypervisor")]
