"""Steps that bring a new sandbox's machine up."""

from space.control.steps.step import StepContext
from space.core.node import MachineOrder


async def start_machine(context: StepContext) -> None:
    """Have the node run the machine; returns once its guest agent has answered."""
    sandbox = context.sandbox
    order = MachineOrder(
        ref=context.machine,
        runtime=sandbox.runtime,
        template_digest=sandbox.template_digest,
        resources=sandbox.resources,
        env=sandbox.env,
    )
    await context.node.ensure(order)
