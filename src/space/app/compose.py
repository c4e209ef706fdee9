"""Puts the parts of one machine together: store, node, control plane, HTTP applications."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.config import Settings
from space.control.accounts import Accounts
from space.control.activity import Activity
from space.control.audit import Audit
from space.control.awake import Awake
from space.control.collector import Collector
from space.control.commands import Commands
from space.control.files import Files
from space.control.idempotency import Idempotency
from space.control.keys import ProjectKeys
from space.control.observations import Observations
from space.control.operations import Operations, Worker
from space.control.pools import Pools
from space.control.projects import Projects
from space.control.reaper import Reaper
from space.control.run import Runs
from space.control.sandboxes import Sandboxes
from space.control.tokens import Tokens
from space.core.ids import NodeId, make_id
from space.core.node import MachineRef
from space.core.ports import Clock, NodeClient, ObjectStore, Runtime, Sealer, Templates
from space.core.store import Store
from space.host.cgroup import Cgroups
from space.host.filestore import FileStores
from space.host.instance import Instance
from space.host.network import Network
from space.node.agent import Node
from space.node.settings import NodeSettings
from space.node.slots import Slots
from space.node.snapshots import Images
from space.runtimes.gvisor import GVisor
from space.server.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The control plane's parts and the loops that keep them going."""

    services: Services
    accounts: Accounts
    commands: Commands
    loops: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]  #: to be run until the server stops


def runtimes_of(instance: Instance) -> Sequence[Runtime]:
    """Return the runtimes that this version brings, in order of preference."""
    return (GVisor(instance),)


def build_node(
    settings: Settings,
    *,
    instance: Instance,
    agent_dir: Path,
    templates: Templates,
    objects: ObjectStore,
    clock: Clock,
) -> Node:
    """Return this machine's node; `run` it."""
    slots = Slots(
        networks=Network(instance),
        filestores=FileStores(settings.data_dir / "filestores"),
        cgroups=Cgroups(instance),
        cgroup_of=instance.slot_cgroup,
        ahead=settings.slots_ahead,
        disk_mib=2048,
    )
    return Node(
        node_id=node_id_of(instance),
        settings=NodeSettings(
            data_dir=settings.data_dir,
            agent_dir=agent_dir,
            journal_limit_mib=settings.journal_limit_mib,
            journal_keep_hours=settings.journal_keep_hours,
            max_machines=settings.max_machines,
            memory_reserve_mib=settings.memory_reserve_mib,
            memory_overcommit=settings.memory_overcommit,
            create_deadline=settings.create_deadline_seconds,
            template_images=settings.template_images,
        ),
        runtimes={runtime.name: runtime for runtime in runtimes_of(instance)},
        templates=templates,
        slots=slots,
        images=Images(settings.data_dir / "node" / "images", objects, cache_bytes=settings.snapshot_cache_mib << 20),
        clock=clock,
    )


def node_id_of(instance: Instance) -> NodeId:
    """Return the id of the only node of this instance: it lasts as long as the data directory."""
    seed = bytes.fromhex(instance.id)
    return NodeId(make_id("nod", unix_ms=0, randomness=(seed + bytes(10))[:10]))


def build_control(
    settings: Settings,
    *,
    store: Store,
    node: NodeClient,
    templates: Templates,
    clock: Clock,
    data_plane_url: Callable[[], str],
    checks: Mapping[str, Callable[[], Awaitable[Any]]],
    sealer: Sealer | None = None,
    objects: ObjectStore | None = None,
) -> Control:
    """Return the control plane over a store and a node; without a sealer it keeps no snapshots."""
    activity = Activity(store, clock)
    tokens = Tokens(store, clock)
    worker = Worker(
        store,
        node,
        clock,
        keys=None if sealer is None else ProjectKeys(store, sealer),
        lease_seconds=settings.lease_seconds,
        create_deadline_seconds=settings.create_deadline_seconds,
    )
    pools = Pools(
        store,
        node,
        templates,
        clock,
        configured=settings.pool_sizes,
        runtime=settings.runtime,
        budget_mib=settings.pool_memory_mib,
        busy=worker.starting,
    )
    sandboxes = Sandboxes(
        store,
        node,
        templates,
        clock,
        worker,
        runtime=settings.runtime,
        max_machines=settings.max_machines,
        default_quota_sandboxes=settings.default_quota_sandboxes,
        pools=pools,
    )
    operations = Operations(store, clock)
    awake = Awake(store, clock, sandboxes.changes, operations, activity)
    commands = Commands(
        store,
        node,
        clock,
        tokens=tokens,
        activity=activity,
        awake=awake,
        session_token_seconds=settings.session_token_seconds,
        keep_hours=settings.journal_keep_hours,
    )
    files = Files(store, node, clock, awake)
    accounts = Accounts(store, tokens, clock, login_hours=settings.login_hours)
    idempotency = Idempotency(store, clock)
    observations = Observations(store, node, clock, commands)
    reaper = Reaper(store, node, clock, worker, activity=activity)
    services = Services(
        sandboxes=sandboxes,
        operations=operations,
        commands=commands,
        files=files,
        runs=Runs(sandboxes, operations, commands, files),
        accounts=accounts,
        tokens=tokens,
        projects=Projects(store, clock),
        pools=pools,
        audit=Audit(store, clock),
        idempotency=idempotency,
        templates=templates,
        settings=settings,
        clock=clock,
        node_facts=node.facts,
        metrics=lambda sandbox: node.stats(MachineRef(sandbox.id, sandbox.generation)),
        data_plane_url=data_plane_url,
        checks=checks,
    )
    loops: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "worker": worker.run,
        "observations": observations.run,
        "reaper": reaper.run,
        "pools": pools.run,
        "commands": commands.run,
        "tokens": tokens.run,
        "idempotency": idempotency.run,
        "activity": activity.run,
    }
    if objects is not None:
        loops["collector"] = Collector(store, node, objects, clock).run
    return Control(services=services, accounts=accounts, commands=commands, loops=loops)
