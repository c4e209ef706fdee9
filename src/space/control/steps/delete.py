"""Steps that take a sandbox's machine away."""

from space.control.steps.step import StepContext


async def remove_machine(context: StepContext) -> None:
    """End every machine of the sandbox; the node keeps a tombstone, so that no late `ensure` revives one."""
    await context.node.remove(context.machine)
