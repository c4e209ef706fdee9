"""Names in the kernel."""

from space.host.instance import Instance


def test_names_depend_on_the_instance_and_on_nothing_else() -> None:
    assert Instance("a") == Instance("a")
    assert Instance("a").tag == Instance("a").tag
    assert Instance("a").tag != Instance("b").tag


def test_a_slots_namespace_tells_its_slot_to_its_own_instance_only() -> None:
    one, other = Instance("a"), Instance("b")
    assert one.slot_of_netns(one.slot_netns(17)) == 17
    for foreign in (other.slot_netns(17), one.gateway_netns, "space-x", one.slot_netns(0), f"{one.slot_netns(1)}-2"):
        assert one.slot_of_netns(foreign) is None


def test_a_unix_socket_below_the_run_directory_fits_the_kernels_limit() -> None:
    socket = Instance("a").run_dir / "gvisor" / f"runsc-{'x' * 35}.sock"
    assert len(str(socket)) <= 107
