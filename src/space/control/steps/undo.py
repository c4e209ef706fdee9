"""What is done on the node when an operation has failed, so that its sandbox is as it was before.

Each is a sequence of idempotent acts.  All are tried, whatever becomes of the others.  What most of them leave is
repaired by the reconciler and by the node's own clean-up; nobody but us lets a machine go on that we have stopped.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from space.control.steps.step import StepContext
from space.core.errors import NotFound, StaleGeneration
from space.core.lifecycle import Kind, State

Undo = Callable[[StepContext], Awaitable[None]]


async def remove_machine(context: StepContext) -> None:
    """End what was half-built; nothing of it is wanted."""
    await context.node.remove(context.machine)


async def go_on(context: StepContext) -> None:
    """Let a machine that ran go on; one that was paused stays so, and one that is gone is not our business."""
    if context.sandbox.state is State.RUNNING:
        with suppress(NotFound, StaleGeneration):
            await context.node.resume(context.machine)


async def discard_snapshot(context: StepContext) -> None:
    """Forget the moment: it is not durable, and the machine goes on from it."""
    if context.operation.snapshot_id is not None:
        await context.node.discard(context.operation.snapshot_id)


async def give_up_machine(context: StepContext) -> None:
    """End the machine that should have gone on from a moment; a later one takes its sessions over."""
    if context.sandbox.state is State.PAUSED:
        await context.node.pause(context.machine)
    else:
        await context.node.release(context.machine)


_NO_MOMENT = (discard_snapshot, go_on)
UNDO: Mapping[Kind, Sequence[Undo]] = {
    Kind.CREATE: (remove_machine,),
    Kind.PAUSE: (go_on,),
    Kind.SUSPEND: _NO_MOMENT,
    Kind.FORK: _NO_MOMENT,
    Kind.SNAPSHOT: _NO_MOMENT,
    Kind.WAKE: (give_up_machine,),
    Kind.RECOVER: (give_up_machine,),
}
MUST_SUCCEED = frozenset({go_on})  #: else the operation does not end yet
