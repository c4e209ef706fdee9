"""Which sandboxes a caller may use, and whether their machines can be used now."""

from space.core.account import Principal
from space.core.errors import NotFound
from space.core.lifecycle import require_running
from space.core.node import MachineRef
from space.core.sandbox import Sandbox
from space.core.store import Store


async def own_sandbox(store: Store, who: Principal, sandbox_id: str) -> Sandbox:
    """Return the sandbox, whatever its state.  Another project's is `NotFound`."""
    sandbox = await store.sandboxes.find(sandbox_id)
    if sandbox is None or sandbox.project_id != who.project_id:
        raise NotFound(f"no sandbox {sandbox_id[:64]}", id=sandbox_id[:64])
    return sandbox


async def own_machine(store: Store, who: Principal, sandbox_id: str) -> MachineRef:
    """Return the machine of a running sandbox.

    Raises `NotFound`, and what `require_running` raises.
    """
    sandbox = await own_sandbox(store, who, sandbox_id)
    held_by = (sandbox.held_by, sandbox.held_kind) if sandbox.held_by and sandbox.held_kind else None
    require_running(sandbox.state, held_by=held_by)
    return MachineRef(sandbox.id, sandbox.generation)
