"""Steps that bring a sandbox's machine up."""

import structlog

from space.control.steps.step import StepContext
from space.core.errors import SpaceError, StaleGeneration
from space.core.ids import PooledId
from space.core.node import MachineOrder

log = structlog.get_logger()


async def start_machine(context: StepContext) -> None:
    """Have the node run the machine; returns once its guest agent has answered.

    A warm machine that the create claimed becomes it in milliseconds.  If that fails, whatever the reason, the warm
    machine is given up and another is started.
    """
    order = machine_order(context)
    pooled_id = context.sandbox.pooled_id
    if pooled_id is not None and order.restore is None and await _bind(context, pooled_id, order):
        return
    await context.node.ensure(order)


def machine_order(context: StepContext) -> MachineOrder:
    """Return what the node is asked to run."""
    sandbox = context.sandbox
    return MachineOrder(
        ref=context.machine,
        runtime=sandbox.runtime,
        template_digest=sandbox.template_digest,
        resources=sandbox.resources,
        env=sandbox.env,
        restore=context.restore,
    )


async def _bind(context: StepContext, pooled_id: PooledId, order: MachineOrder) -> bool:
    try:
        await context.node.bind(pooled_id, order)
    except StaleGeneration:  # a delete was here: no machine is wanted any more
        raise
    except SpaceError as error:
        log.warning("pool.machine_not_bound", machine=pooled_id, sandbox=order.ref.sandbox_id, error=error.message)
        await context.node.retire(pooled_id)
        return False
    return True
