"""What an error, a log or a debugger may show of a value never holds a secret."""

from pathlib import Path

from space.core.command import CommandSpec
from space.core.ids import SandboxId
from space.core.node import MachineOrder, MachineRef, MachineSpec, Slot
from space.core.sandbox import Resources, SandboxSpec
from space.testing.rows import creation

SECRET = "very-secret"
ENV = {"API_KEY": SECRET}


def test_neither_token_nor_environment_leaks_through_a_representation() -> None:
    ref = MachineRef(SandboxId("sbx" + "0" * 26), 1)
    slot = Slot(
        index=0,
        netns="a",
        gateway_netns="b",
        guest_ip="192.0.2.2",
        gateway_ip="192.0.2.1",
        prefix_length=30,
        filestore=Path("/f"),
        cgroup="/c",
    )
    spec = MachineSpec(
        machine_id=ref.machine_id,
        rootfs=Path("/r"),
        slot=slot,
        resources=Resources(),
        agent_dir=Path("/a"),
        token=SECRET,
        agent_port=1,
        state_dir=Path("/s"),
    )
    order = MachineOrder(ref=ref, runtime="fake", template_digest="sha256:0", resources=Resources(), env=ENV)
    for value in (
        spec,
        order,
        SandboxSpec(template="base", env=ENV),
        creation(env=ENV),
        CommandSpec(argv=("a",), env=ENV),
    ):
        assert SECRET not in repr(value)
