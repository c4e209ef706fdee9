"""What runsc is told about a machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from space.core.node import MachineSpec, Slot
from space.core.sandbox import Resources
from space.runtimes.gvisor import bundle


@pytest.fixture
def spec(tmp_path: Path) -> MachineSpec:
    slot = Slot(
        index=1,
        netns="space-x-1",
        gateway_netns="space-x-gw",
        guest_ip="10.72.0.3",
        gateway_ip="10.72.0.2",
        prefix_length=31,
        filestore=tmp_path / "filestore",
        cgroup="/space-x/m1",
    )
    return MachineSpec(
        machine_id="sbx" + "0" * 32,
        rootfs=tmp_path / "rootfs",
        slot=slot,
        resources=Resources(memory_mib=512),
        agent_dir=tmp_path / "agent",
        token="a secret",
        agent_port=7000,
        state_dir=tmp_path / "state",
    )


def test_nothing_of_the_host_is_mounted_but_read_only(spec: MachineSpec) -> None:
    mounts = bundle.config(spec, argv=["/agent"], env={})["mounts"]
    bound = {mount["destination"]: mount for mount in mounts if mount["type"] == "bind"}
    assert bound.keys() == {"/.space", "/tmp"}
    assert "ro" in bound["/.space"]["options"]
    assert all("/var/run" not in mount["source"] for mount in mounts)


def test_tmp_is_over_an_empty_directory_that_all_may_write_to(spec: MachineSpec) -> None:
    directory = bundle.write(spec, argv=["/agent"], env={})
    assert list((directory / "tmp").iterdir()) == []
    assert (directory / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_the_machine_joins_its_slots_namespace_and_group(spec: MachineSpec) -> None:
    linux = bundle.config(spec, argv=["/agent"], env={})["linux"]
    assert {"type": "network", "path": "/run/netns/space-x-1"} in linux["namespaces"]
    assert linux["cgroupsPath"] == "/space-x/m1"


def test_root_in_the_guest_has_no_capability_beyond_dockers_default(spec: MachineSpec) -> None:
    """What is in neither of these sets is lost with the first program that the agent starts."""
    capabilities = bundle.config(spec, argv=["/agent"], env={})["process"]["capabilities"]
    for kind in ("bounding", "inheritable"):
        assert not {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_SYS_MODULE"} & set(capabilities[kind])


def test_the_agent_itself_may_name_the_machine_and_no_more(spec: MachineSpec) -> None:
    capabilities = bundle.config(spec, argv=["/agent"], env={})["process"]["capabilities"]
    for kind in ("effective", "permitted"):
        assert set(capabilities[kind]) - set(capabilities["bounding"]) == {"CAP_SYS_ADMIN"}


def test_a_machine_has_the_hostname_of_its_spec(spec: MachineSpec) -> None:
    assert bundle.config(replace(spec, hostname="brave-otter"), argv=["/agent"], env={})["hostname"] == "brave-otter"


def test_the_bundle_is_for_root_only_and_holds_no_token(spec: MachineSpec) -> None:
    directory = bundle.write(spec, argv=["/agent", "7000"], env={"A": "1"})
    assert directory.stat().st_mode & 0o077 == 0
    text = (directory / "config.json").read_text()
    assert spec.token not in text
    assert json.loads(text)["process"]["env"] == ["A=1"]


def test_writing_again_after_a_crash_succeeds(spec: MachineSpec) -> None:
    assert bundle.write(spec, argv=["/agent"], env={}) == bundle.write(spec, argv=["/agent"], env={})
