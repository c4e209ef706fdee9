"""What a step is: one idempotent act towards an operation's goal."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from space.core.node import MachineRef
from space.core.operation import Operation
from space.core.ports import NodeClient
from space.core.sandbox import Sandbox
from space.core.snapshot import Snapshot, SnapshotOrder, SnapshotRef

Progress = Mapping[str, Any]  #: what a step found out; added to `Operation.progress`
Pin = Callable[[Sequence[bytes]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step may use.  Steps call the node; only the worker writes to the store."""

    sandbox: Sandbox
    operation: Operation
    node: NodeClient
    restore: SnapshotRef | None = None  #: the moment from which the machine goes on; None: it boots
    order: SnapshotOrder | None = None  #: the moment that is to be made of the machine; None without a machine
    rests_in: Snapshot | None = None  #: the moment that a suspended sandbox is
    pin: Pin | None = None  #: makes sure that these chunks stay; there is one wherever there is an `order`

    @property
    def machine(self) -> MachineRef:
        """The machine of the operation's generation: an older one that the sandbox still has is not ours to name."""
        return MachineRef(self.sandbox.id, self.operation.generation)


Step = Callable[[StepContext], Awaitable[Progress | None]]  #: its `__name__` is what the operation's row records
