"""Where a sandbox goes: a pure function of what nodes say of themselves."""

from collections.abc import Sequence

from space.core.errors import CapacityUnavailable, Unsupported
from space.core.lifecycle import Kind
from space.core.node import NodeFacts
from space.core.sandbox import Resources

PREFERENCE = ("firecracker", "cloud-hypervisor", "gvisor")  #: best first; see DESIGN §5
BY_NAME_ONLY = frozenset({"qemu"})  #: may be software emulation, which nobody gets unasked


def choose_runtime(nodes: Sequence[NodeFacts], *, wanted: str | None, default: str | None) -> str:
    """Return the runtime to use: the wanted one, else the operator's default, else the best that works.

    Raises:
        Unsupported: no node can run it; the message says why and how to get it.
    """
    name = wanted or default
    working = {runtime for node in nodes for runtime, can in node.runtimes.items() if can.is_available}
    if name is None:
        ranked = [*PREFERENCE, *sorted(working - BY_NAME_ONLY - set(PREFERENCE))]
        for runtime in ranked:
            if runtime in working:
                return runtime
        raise Unsupported("no runtime works on this installation; `space doctor` says why", feature="runtime")
    if name in working:
        return name
    reasons = [node.runtimes[name].reasons.get("available") for node in nodes if name in node.runtimes]
    why = next((reason for reason in reasons if reason), "it is not known here")
    usable = ", ".join(sorted(working)) or "none"
    raise Unsupported(
        f"runtime {name[:64]} is not available: {why}. Available: {usable}", feature="runtime", field="runtime"
    )


def choose_node(
    nodes: Sequence[NodeFacts],
    *,
    runtime: str,
    resources: Resources,
    max_machines: int,
    is_warm: bool = False,
) -> NodeFacts:
    """Return the node with the most free memory among those that can take the sandbox now.

    What a node says is available leaves out its reserve.  Facts age: the transaction of the create counts again what
    was promised, and the node has the last word.  With `is_warm` a parked machine will serve it, which holds its room
    already.

    Raises:
        CapacityUnavailable: no node has room; `details` say what is short.
    """
    able = [node for node in nodes if runtime in node.runtimes and node.runtimes[runtime].is_available]
    with_slot = [node for node in able if is_warm or node.machines < max_machines]
    if able and not with_slot:
        raise CapacityUnavailable(
            f"every node runs its maximum of {max_machines} sandboxes; delete some or raise SPACE_MAX_MACHINES",
            retry_after=5,
            quota="machines",
            limit=max_machines,
        )
    with_memory = [node for node in with_slot if is_warm or node.memory_available_mib >= resources.memory_mib]
    if not with_memory:
        free = max((node.memory_available_mib for node in with_slot), default=0)
        raise CapacityUnavailable(
            f"no node has {resources.memory_mib} MiB of memory left; the most is {free} MiB. "
            "Delete sandboxes or ask for less",
            retry_after=5,
            quota="memory_mib",
            limit=free,
        )
    return max(with_memory, key=lambda node: (node.memory_available_mib, node.id))


_NEEDS = {
    Kind.PAUSE: "pause",
    Kind.SUSPEND: "memory_snapshot",
    Kind.FORK: "memory_snapshot",
    Kind.SNAPSHOT: "memory_snapshot",
}


def require_capable(nodes: Sequence[NodeFacts], runtime: str, kind: Kind) -> None:
    """Raise `Unsupported`, with the remedy, unless some node's runtime can do what `kind` needs."""
    capability = _NEEDS.get(kind)
    if capability is None:
        return
    found = [node.runtimes[runtime] for node in nodes if runtime in node.runtimes]
    if any(getattr(each, capability) for each in found):
        return
    why = next((each.reasons[capability] for each in found if capability in each.reasons), "it cannot do that here")
    raise Unsupported(f"cannot {kind}: runtime {runtime} says: {why}", feature=capability)
