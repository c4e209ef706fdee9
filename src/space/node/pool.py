"""Machines that are started ahead, wait without a sandbox and are given to one.

A parked machine is in `Machines` like any other, under its own id.  Which sandbox it has is what its record says: the
moment that changes on disk it is bound, and never parked again.
"""

from collections.abc import Collection

import anyio
import anyio.to_thread
import structlog

from space.core.errors import GuestUnreachable, NotFound
from space.core.ids import PooledId, SandboxId
from space.core.node import MachineOrder, MachineRef
from space.core.pool import PoolKey, PoolOrder
from space.host.failpoint import failpoint
from space.node.full_disk import full_disk_refuses
from space.node.generations import Phase
from space.node.live import LiveMachine
from space.node.machines import Machines
from space.node.record import is_pooled, pooled_ref

log = structlog.get_logger(__name__)

_CLEANUP_SECONDS = 60.0  #: for the end of a machine whose binding failed; its own task goes on with it


class Pool:
    """Parks machines and binds them."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._parts = machines.parts

    async def park(self, order: PoolOrder) -> None:
        """See `NodeClient.park`."""
        ref, key = pooled_ref(order.id), order.key
        async with self._machines.locked(ref.sandbox_id):
            live = self._machines.live.get(ref.sandbox_id)
            if live is None and self._bound(order.id) is not None:
                return
            if live is None:
                await self._machines.start(
                    MachineOrder(
                        ref=ref, runtime=key.runtime, template_digest=key.template_digest, resources=key.resources
                    )
                )
                live = self._machines.live[ref.sandbox_id]
            await self._machines.await_agent(live)
            await (await live.guest()).prewarm()
            failpoint("park.before_ready")
            with full_disk_refuses("another machine"):
                await anyio.to_thread.run_sync(live.record.write_ready)

    async def bind(self, pooled_id: PooledId, order: MachineOrder) -> None:
        """See `NodeClient.bind`."""
        ref = order.ref
        self._parts.generations.admit(ref)
        async with self._machines.locked(ref.sandbox_id), self._machines.locked(pooled_ref(pooled_id).sandbox_id):
            self._parts.generations.admit(ref)
            live = self._bound(pooled_id)
            if live is None or live.ref != ref:
                live = await self._give(self._parked(pooled_id, ref, order), order)
            live.is_being_bound = True
            try:
                await self._introduce(live)
                live.is_being_bound = False
            except BaseException:
                # Nobody knows which identity the agent has: the create takes another path, in the same generation.
                with anyio.move_on_after(_CLEANUP_SECONDS, shield=True):
                    await live.end()
                raise

    def _parked(self, pooled_id: PooledId, ref: MachineRef, order: MachineOrder) -> LiveMachine:
        """Return a machine that can be given to `order`'s sandbox; raises `NotFound`."""
        live = self._machines.live.get(pooled_ref(pooled_id).sandbox_id)
        if live is None or live.has_exited or not live.record.is_ready:
            raise NotFound(f"machine {pooled_id} is not parked on this node")
        if self._machines.live.get(ref.sandbox_id) is not None:
            raise NotFound(f"{ref.sandbox_id} has another machine than {pooled_id}")
        if _key(live.record.order) != _key(order):
            raise NotFound(f"machine {pooled_id} is of another kind than was ordered")
        return live

    async def _give(self, live: LiveMachine, order: MachineOrder) -> LiveMachine:
        """Make a parked machine the sandbox's, here and on disk.

        One write is synced: it fences.  After a crash of the host the machine is no more, whatever its record says.
        """
        await self._parts.generations.record(order.ref, Phase.UP)
        failpoint("bind.after_generation")
        parked = live.ref.sandbox_id
        with full_disk_refuses("another machine"):
            await live.give_to(order)
        del self._machines.live[parked]
        self._machines.live[order.ref.sandbox_id] = live
        failpoint("bind.after_record")
        return live

    async def _introduce(self, live: LiveMachine) -> None:
        """Tell the agent whose it is; raises `GuestUnreachable`."""
        if live.record.old_token is not None:
            await live.become(await live.guest())
        elif not await live.answers(self._parts.settings.guest_deadline):
            raise GuestUnreachable(f"the agent of {live.ref.sandbox_id} does not answer")
        failpoint("bind.after_personalise")
        log.info("machine.bound", machine=live.record.machine_id, sandbox=live.ref.sandbox_id)

    def _bound(self, pooled_id: PooledId) -> LiveMachine | None:
        """Return the machine that was parked under this id, now a sandbox's."""
        machine_id = pooled_ref(pooled_id).machine_id
        for live in self._machines.live.values():
            if live.record.machine_id == machine_id and not live.record.is_pooled:
                return live
        return None

    async def retire(self, pooled_id: PooledId) -> None:
        """See `NodeClient.retire`."""
        sandbox_id = pooled_ref(pooled_id).sandbox_id
        building = self._machines.building.get(sandbox_id)
        if building is not None:
            building.scope.cancel()
        async with self._machines.locked(sandbox_id):
            live = self._machines.live.get(sandbox_id)
            if live is not None:
                await live.end()

    def parked(self) -> Collection[PooledId]:
        """See `NodeClient.parked`."""
        live = [each.ref for each in self._machines.live.values() if not each.has_exited]
        building = [each.order.ref for each in self._machines.building.values()]
        return {_pooled_id(ref) for ref in (*live, *building) if is_pooled(ref)}


def _key(order: MachineOrder) -> PoolKey:
    return PoolKey(template_digest=order.template_digest, runtime=order.runtime, resources=order.resources)


def _pooled_id(ref: MachineRef) -> PooledId:
    sandbox_id: SandboxId = ref.sandbox_id
    return PooledId(sandbox_id)
