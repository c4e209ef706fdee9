"""What the node keeps on disk of one machine, in `node/machines/<machine id>/` (0700).

* `intent.json` is written before anything is started: order, slot and template.  A directory with an intent and
  no handle is a machine that a crash left half built.
* `token` (0600) is the agent's token.
* `identity.json` (0600) is there while the agent may still be another: restored, or of a parked machine that is being
  bound.  It holds the token of then, and the one that it gets.
* `handle.json` is the runtime's handle: how to find the machine again.
* `ready` says that a machine without a sandbox may be given to one.
* `halt.json` says that the machine stands still, and for what.
* `used` has the time of the last use.
* `runtime/` belongs to the runtime.

Nothing here is synced: after a crash of the host there is no machine left that it could tell of.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from space.core.ids import PooledId, SandboxId, SnapshotId
from space.core.node import MachineHandle, MachineOrder, MachineRef, MachineSpec, Slot
from space.core.sandbox import Resources
from space.core.template import Template
from space.host.failpoint import failpoint
from space.node.private_files import remove_tree, write_private
from space.node.snapshots.image import boot_id


def pooled_ref(pooled_id: PooledId) -> MachineRef:
    """Return what a machine without a sandbox goes by: its own id, in the one generation that it has."""
    return MachineRef(SandboxId(pooled_id), 0)


def is_pooled(ref: MachineRef) -> bool:
    """Whether it is the ref of a machine without a sandbox."""
    return ref.sandbox_id.startswith("mch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a machine is started from when it is not booted."""

    path: Path
    token: str = field(repr=False)  #: that its agent has
    sandbox_id: SandboxId | None = None  #: whose moment it is; None: a template's


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Why a machine stands still: paused, or stopped at the moment of a snapshot."""

    frozen_for: SnapshotId | None = None


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
    old_token: str | None = field(default=None, repr=False)  #: the agent may have this one and the identity of then
    moment_of: SandboxId | None = None  #: the sandbox from whose moment it was started
    boot_id: str = field(default_factory=boot_id)  #: of the host, when the machine was made
    handle: MachineHandle | None = None

    @classmethod
    def make(
        cls, machines: Path, order: MachineOrder, slot: Slot, template: Template, origin: Origin | None = None
    ) -> "MachineRecord":
        """Give a new machine a token; nothing is written yet."""
        return cls(
            directory=machines / order.ref.machine_id,
            order=replace(order, restore=None),  # it holds a key, which is not to be written down
            slot=slot,
            rootfs=template.rootfs,
            default_user=template.user,
            env={**template.env, **order.env},
            token=secrets.token_hex(32),
            old_token=origin.token if origin is not None else None,
            moment_of=origin.sandbox_id if origin is not None else None,
        )

    @property
    def ref(self) -> MachineRef:
        return self.order.ref

    @property
    def machine_id(self) -> str:
        """The runtime's id; a machine that was parked keeps the one that it had then."""
        return self.directory.name

    @property
    def is_of_this_boot(self) -> bool:
        """Whether it may still run: no machine outlives its host, and pids and their start times come again."""
        return self.boot_id == boot_id()

    @property
    def is_pooled(self) -> bool:
        """Whether it has no sandbox yet."""
        return is_pooled(self.ref)

    @property
    def carries_on(self) -> bool:
        """Whether it goes on from an earlier moment of its own sandbox."""
        return self.moment_of == self.ref.sandbox_id

    @property
    def is_fork(self) -> bool:
        """Whether it began as another sandbox, whose processes are none of its own."""
        return self.moment_of is not None and not self.carries_on

    @property
    def tokens(self) -> Sequence[str]:
        """What the agent's token may be, likeliest first."""
        return (self.token,) if self.old_token is None else (self.old_token, self.token)

    @property
    def hostname(self) -> str:
        return "sandbox" if self.is_pooled else self.ref.sandbox_id

    def spec(self, *, agent_dir: Path, agent_port: int) -> MachineSpec:
        return MachineSpec(
            machine_id=self.machine_id,
            rootfs=self.rootfs,
            slot=self.slot,
            resources=self.order.resources,
            agent_dir=agent_dir,
            token=self.token,
            agent_port=agent_port,
            state_dir=self.directory / "runtime",
            default_user=self.default_user,
            hostname=self.hostname,
        )

    def write_intent(self) -> None:
        self.directory.mkdir(mode=0o700)
        failpoint("record.after_directory")
        (self.directory / "runtime").mkdir(mode=0o700)
        write_private(self.directory / "token", self.token)
        self._write_identity()
        self._write_intent()

    def _write_identity(self) -> None:
        if self.old_token is not None:
            write_private(
                self.directory / "identity.json", json.dumps({"token": self.token, "old_token": self.old_token})
            )

    def _write_intent(self) -> None:
        intent = {
            "version": 1,
            "order": asdict(self.order),
            "slot": asdict(self.slot),
            "rootfs": self.rootfs,
            "default_user": self.default_user,
            "env": dict(self.env),
            "moment_of": self.moment_of,
            "boot_id": self.boot_id,
        }
        write_private(self.directory / "intent.json", json.dumps(intent, default=os.fspath))

    def bind(self, order: MachineOrder) -> "MachineRecord":
        """Give a parked machine to a sandbox, on disk; its agent is to be told.  The intent is what decides."""
        bound = replace(
            self,
            order=replace(order, restore=None),
            env={**self.env, **order.env},
            token=secrets.token_hex(32),
            old_token=self.token,
        )
        bound._write_identity()
        bound._write_intent()
        return bound

    def settle(self) -> "MachineRecord":
        """Note that the agent has its new identity."""
        write_private(self.directory / "token", self.token)
        failpoint("record.after_token")
        (self.directory / "identity.json").unlink(missing_ok=True)
        return replace(self, old_token=None)

    @property
    def is_ready(self) -> bool:
        """Whether a machine without a sandbox may be given to one."""
        return (self.directory / "ready").exists()

    def write_ready(self) -> None:
        write_private(self.directory / "ready", "")

    def read_halt(self) -> Halt | None:
        """Return for what the machine stands still; None if it runs."""
        try:
            found = json.loads((self.directory / "halt.json").read_text())
            snapshot_id = found["frozen_for"]
            return Halt(frozen_for=None if snapshot_id is None else SnapshotId(snapshot_id))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return Halt()

    def write_halt(self, halt: Halt | None) -> None:
        path = self.directory / "halt.json"
        if halt is None:
            path.unlink(missing_ok=True)
        else:
            write_private(path, json.dumps(asdict(halt)))

    def write_handle(self, handle: MachineHandle) -> None:
        write_private(self.directory / "handle.json", json.dumps(asdict(handle)))

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
            old_token = None
            path = directory / "identity.json"
            order = _order(intent["order"])
            if path.exists():
                identity = json.loads(path.read_text())
                is_unbound = is_pooled(order.ref) and identity["old_token"] == token
                if not is_unbound:  # else a crash came while it was being bound, before that counted
                    token, old_token = identity["token"], identity["old_token"]
            path = directory / "handle.json"
            handle = MachineHandle(**json.loads(path.read_text())) if path.exists() else None
            return cls(
                directory=directory,
                order=order,
                slot=Slot(**{**intent["slot"], "filestore": Path(intent["slot"]["filestore"])}),
                rootfs=Path(intent["rootfs"]),
                default_user=intent["default_user"],
                env=intent["env"],
                token=token,
                old_token=old_token,
                moment_of=intent.get("moment_of"),
                boot_id=intent.get("boot_id") or boot_id(),
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
