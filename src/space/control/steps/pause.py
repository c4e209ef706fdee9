"""Steps that stop a machine and let it go on, its memory kept on the node."""

from space.control.steps.create import start_machine
from space.control.steps.step import StepContext
from space.core.lifecycle import State


async def pause_machine(context: StepContext) -> None:
    """Stop the machine's processors."""
    await context.node.pause(context.machine)


async def wake_machine(context: StepContext) -> None:
    """Let a paused machine go on; start that of a suspended sandbox from its moment."""
    if context.sandbox.state is State.PAUSED:
        await context.node.resume(context.machine)
    else:
        await start_machine(context)
