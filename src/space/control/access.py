"""Which sandboxes a caller may use."""

from space.core.account import Principal
from space.core.errors import NotFound
from space.core.ids import OperationId
from space.core.lifecycle import Kind
from space.core.sandbox import Sandbox
from space.core.store import Store


async def own_sandbox(store: Store, who: Principal, sandbox_id: str) -> Sandbox:
    """Return the sandbox, whatever its state.  Another project's is `NotFound`."""
    sandbox = await store.sandboxes.find(sandbox_id)
    if sandbox is None or sandbox.project_id != who.project_id:
        raise NotFound(f"no sandbox {sandbox_id[:64]}", id=sandbox_id[:64])
    return sandbox


def holder_of(sandbox: Sandbox) -> tuple[OperationId, Kind] | None:
    """Return the operation that works on the sandbox."""
    return (sandbox.held_by, sandbox.held_kind) if sandbox.held_by and sandbox.held_kind else None
