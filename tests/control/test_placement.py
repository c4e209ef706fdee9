"""Choosing a runtime and a node."""

from dataclasses import replace

import pytest

from space.control.placement import choose_node, choose_runtime
from space.core.errors import CapacityUnavailable, Unsupported
from space.core.ids import NodeId
from space.core.node import Capabilities, NodeFacts
from space.core.sandbox import Resources


def node(name: str = "a", *, memory: int = 4096, machines: int = 0, **runtimes: str | None) -> NodeFacts:
    """A node; a runtime's value is why it does not work."""
    return NodeFacts(
        id=NodeId(name),
        epoch=1,
        runtimes={
            runtime: Capabilities(
                runtime=runtime, is_available=why is None, reasons={} if why is None else {"available": why}
            )
            for runtime, why in (runtimes or {"gvisor": None}).items()
        },
        vcpus=2,
        memory_mib=memory,
        memory_available_mib=memory,
        disk_available_mib=1024,
        machines=machines,
    )


@pytest.mark.parametrize(
    ("runtimes", "chosen"),
    [
        ({"gvisor": None, "firecracker": None}, "firecracker"),
        ({"gvisor": None, "firecracker": "no KVM"}, "gvisor"),
        ({"qemu": None, "gvisor": None}, "gvisor"),
        ({"fake": None}, "fake"),
    ],
)
def test_without_a_wish_the_best_that_works_is_chosen(runtimes: dict[str, str | None], chosen: str) -> None:
    assert choose_runtime([node(**runtimes)], wanted=None, default=None) == chosen


def test_emulation_is_chosen_by_name_only() -> None:
    nodes = [node(qemu=None)]
    assert choose_runtime(nodes, wanted="qemu", default=None) == "qemu"
    with pytest.raises(Unsupported):
        choose_runtime(nodes, wanted=None, default=None)


def test_a_wish_goes_before_the_operators_default_and_that_before_the_best() -> None:
    nodes = [node(gvisor=None, firecracker=None, qemu=None)]
    assert choose_runtime(nodes, wanted="gvisor", default="qemu") == "gvisor"
    assert choose_runtime(nodes, wanted=None, default="qemu") == "qemu"


def test_a_runtime_that_does_not_work_is_refused_with_the_reason_and_the_alternatives() -> None:
    with pytest.raises(Unsupported, match=r"no /dev/kvm.*Available: gvisor"):
        choose_runtime([node(gvisor=None, firecracker="no /dev/kvm")], wanted="firecracker", default=None)
    with pytest.raises(Unsupported, match="not known") as caught:
        choose_runtime([node()], wanted="x" * 10_000, default=None)
    assert len(caught.value.message) < 300


def place(nodes: list[NodeFacts], *, memory: int = 512, most: int = 10) -> str:
    chosen = choose_node(
        nodes,
        runtime="gvisor",
        resources=Resources(memory_mib=memory),
        max_machines=most,
    )
    return chosen.id


def test_the_node_with_the_most_free_memory_is_chosen() -> None:
    assert place([node("a", memory=2048), node("b", memory=4096), node("c", memory=1024)]) == "b"


def test_a_node_without_the_runtime_or_at_its_maximum_is_passed_over() -> None:
    assert place([node("a", memory=9000, qemu=None), node("b", memory=8000, machines=10), node("c")]) == "c"


def test_a_node_must_have_the_memory_left() -> None:
    assert place([node(memory=512)]) == "a"
    with pytest.raises(CapacityUnavailable) as caught:
        place([node(memory=511)])
    assert caught.value.details == {"quota": "memory_mib", "limit": 511}
    assert caught.value.retryable


def test_all_nodes_full_says_which_limit() -> None:
    with pytest.raises(CapacityUnavailable, match="SPACE_MAX_MACHINES") as caught:
        place([replace(node(), machines=10)])
    assert caught.value.details == {"quota": "machines", "limit": 10}


def test_no_node_at_all_is_no_capacity() -> None:
    with pytest.raises(CapacityUnavailable):
        place([])


def test_a_warm_machine_holds_its_room_already() -> None:
    full = node(memory=0, machines=250)
    with pytest.raises(CapacityUnavailable):
        choose_node([full], runtime="gvisor", resources=Resources(), max_machines=250)
    assert choose_node([full], runtime="gvisor", resources=Resources(), max_machines=250, is_warm=True) is full
