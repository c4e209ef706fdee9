"""What the node keeps on disk of one machine, in `node/machines/<machine id>/` (0700).

* `intent.json` is written before anything is started: order, slot and template.  A directory with an intent and
  no handle is a machine that a crash left half built.
* `token` (0600) is the agent's token.
* `handle.json` is the runtime's handle: how to find the machine again.
* `runtime/` belongs to the runtime.
"""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from space.core.ids import SandboxId
from space.core.node import MachineHandle, MachineOrder, MachineRef, MachineSpec, Slot
from space.core.sandbox import Resources
from space.core.template import Template
from space.host.failpoint import failpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """One machine as it was ordered, and where its things are."""

    directory: Path
    order: MachineOrder
    slot: Slot
    rootfs: Path
    default_user: str
    env: Mapping[str, str] = field(repr=False)  #: the template's with the sandbox's above it
    token: str = field(repr=False)
    handle: MachineHandle | None = None

    @classmethod
    def make(cls, machines: Path, order: MachineOrder, slot: Slot, template: Template) -> "MachineRecord":
        """Give a new machine a token; nothing is written yet."""
        return cls(
            directory=machines / order.ref.machine_id,
            order=order,
            slot=slot,
            rootfs=template.rootfs,
            default_user=template.user,
            env={**template.env, **order.env},
            token=secrets.token_hex(32),
        )

    @property
    def ref(self) -> MachineRef:
        return self.order.ref

    def spec(self, *, agent_dir: Path, agent_port: int) -> MachineSpec:
        return MachineSpec(
            machine_id=self.ref.machine_id,
            rootfs=self.rootfs,
            slot=self.slot,
            resources=self.order.resources,
            agent_dir=agent_dir,
            token=self.token,
            agent_port=agent_port,
            state_dir=self.directory / "runtime",
            default_user=self.default_user,
        )

    def write_intent(self) -> None:
        self.directory.mkdir(mode=0o700)
        failpoint("record.after_directory")
        (self.directory / "runtime").mkdir(mode=0o700)
        _write(self.directory / "token", self.token)
        intent = {
            "version": 1,
            "order": asdict(self.order),
            "slot": asdict(self.slot),
            "rootfs": self.rootfs,
            "default_user": self.default_user,
            "env": dict(self.env),
        }
        _write(self.directory / "intent.json", json.dumps(intent, default=os.fspath))

    def write_handle(self, handle: MachineHandle) -> None:
        _write(self.directory / "handle.json", json.dumps(asdict(handle)))

    def remove(self) -> None:
        """Forget the machine; the handle goes first, so that a crash here is repaired like one while building."""
        remove_tree(self.directory / "handle.json")
        failpoint("record.after_handle")
        remove_tree(self.directory)

    @classmethod
    def read(cls, directory: Path) -> "MachineRecord | None":
        """Read it back; None if it is not whole, as after a crash while the intent was written."""
        try:
            intent = json.loads((directory / "intent.json").read_text())
            token = (directory / "token").read_text()
            path = directory / "handle.json"
            handle = MachineHandle(**json.loads(path.read_text())) if path.exists() else None
            return cls(
                directory=directory,
                order=_order(intent["order"]),
                slot=Slot(**{**intent["slot"], "filestore": Path(intent["slot"]["filestore"])}),
                rootfs=Path(intent["rootfs"]),
                default_user=intent["default_user"],
                env=intent["env"],
                token=token,
                handle=handle,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _order(found: dict[str, Any]) -> MachineOrder:
    return MachineOrder(
        ref=MachineRef(SandboxId(found["ref"]["sandbox_id"]), found["ref"]["generation"]),
        runtime=found["runtime"],
        template_digest=found["template_digest"],
        resources=Resources(**found["resources"]),
        env=found["env"],
    )


def _write(path: Path, text: str) -> None:
    """Write a small private file whole or not at all."""
    temporary = path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(text.encode())
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    temporary.replace(path)


def remove_tree(path: Path) -> None:
    """Remove a file or a directory with all that it holds; succeeds if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
