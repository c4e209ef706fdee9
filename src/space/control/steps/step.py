"""What a step is: one idempotent act towards an operation's goal."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from space.core.node import MachineRef
from space.core.operation import Operation
from space.core.ports import NodeClient
from space.core.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step may use.  Steps call the node; only the worker writes to the store."""

    sandbox: Sandbox
    operation: Operation
    node: NodeClient

    @property
    def machine(self) -> MachineRef:
        """The machine of the operation's generation: an older one that the sandbox still has is not ours to name."""
        return MachineRef(self.sandbox.id, self.operation.generation)


Step = Callable[[StepContext], Awaitable[None]]  #: its `__name__` is what the operation's row records
