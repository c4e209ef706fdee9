"""Slots: made in batches, claimed, given back, swept."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from ipaddress import IPv4Network

import pytest

from space.host import netns
from space.host.instance import Instance
from space.host.network import RANGES, Network, free_range, host_routes
from space.host.process import run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    made = Network(Instance(f"test-{uuid.uuid4()}"))
    yield made
    await made.remove()


async def addresses(name: str) -> set[str]:
    shown = json.loads((await run(["ip", "-n", name, "-json", "addr", "show", "dev", "eth0"])).stdout)
    return {f"{found['local']}/{found['prefixlen']}" for link in shown for found in link.get("addr_info", ())}


def own_namespaces(network: Network) -> set[str]:
    return {name for name in netns.names() if network.instance.tag in name}


@pytest.mark.root
async def test_a_batch_of_slots_has_namespaces_addresses_and_routes(network: Network) -> None:
    await network.prepare(3)
    assert network.free == 3
    for index in (1, 2, 3):
        slot = network.slot(index)
        assert await addresses(slot.netns) == {f"{slot.guest_ip}/31"}
        routes = (await run(["ip", "-n", slot.netns, "route"])).stdout.decode()
        assert f"default via {slot.gateway_ip}" in routes


@pytest.mark.root
async def test_preparing_again_makes_only_what_is_missing(network: Network) -> None:
    await network.prepare(2)
    await network.prepare(2)
    assert network.free == 2
    await network.claim()
    await network.prepare(2)
    assert network.free == 2
    assert len(own_namespaces(network)) == 4


@pytest.mark.root
async def test_each_claim_gives_another_slot_also_at_once(network: Network) -> None:
    await network.prepare(2)
    slots = await asyncio.gather(*(network.claim() for _ in range(4)))
    assert len({slot.index for slot in slots}) == 4
    assert len({slot.guest_ip for slot in slots}) == 4


@pytest.mark.root
async def test_a_released_slot_gets_back_what_runsc_strips(network: Network) -> None:
    slot = await network.claim()
    await run(["ip", "-n", slot.netns, "addr", "flush", "dev", "eth0"])
    await network.release(slot.index)
    await network.release(slot.index)
    assert await addresses(slot.netns) == {f"{slot.guest_ip}/31"}
    assert (await network.claim()).index == slot.index


@pytest.mark.root
async def test_a_broken_slot_is_removed_instead_of_being_given_out(network: Network) -> None:
    slot = await network.claim()
    await run(["ip", "-n", slot.gateway_netns, "link", "delete", slot.link])
    await network.release(slot.index)
    assert network.free == 0
    assert not netns.exists(slot.netns)
    again = await network.claim()
    assert await addresses(again.netns) == {f"{again.guest_ip}/31"}


@pytest.mark.root
async def test_a_sweep_keeps_claimed_slots_and_frees_the_others(network: Network) -> None:
    await network.prepare(3)
    kept = await network.claim()
    restarted = Network(network.instance)
    assert await restarted.sweep({kept.index}) == [2, 3]
    assert restarted.slot(kept.index) == kept
    assert restarted.free == 2
    assert (await restarted.claim()).index != kept.index


@pytest.mark.root
async def test_a_half_made_slot_is_swept_and_made_anew(network: Network) -> None:
    await network.open()
    await run(["ip", "netns", "add", network.instance.slot_netns(1)])
    restarted = Network(network.instance)
    assert await restarted.sweep(()) == [1]
    assert restarted.free == 0
    slot = await restarted.claim()
    assert await addresses(slot.netns) == {f"{slot.guest_ip}/31"}


@pytest.mark.root
async def test_a_half_made_slot_that_was_not_swept_is_made_anew_too(network: Network) -> None:
    await network.open()
    await run(["ip", "netns", "add", network.instance.slot_netns(1)])
    slot = await network.claim()
    assert await addresses(slot.netns) == {f"{slot.guest_ip}/31"}


@pytest.mark.root
async def test_names_whose_making_was_killed_are_made_anew(network: Network) -> None:
    for name in (network.gateway_netns, network.instance.slot_netns(1)):
        netns.path_of(name).touch()  # `ip netns add` makes the file before it mounts the namespace on it
    assert await network.sweep(()) == [1]
    slot = await network.claim()
    assert await addresses(slot.netns) == {f"{slot.guest_ip}/31"}


@pytest.mark.root
async def test_a_restart_keeps_the_range_even_if_the_host_gained_routes(network: Network) -> None:
    await network.open()
    restarted = Network(network.instance, subnet=IPv4Network("10.127.0.0/16"))
    await restarted.open()
    assert restarted.subnet == network.subnet


@pytest.mark.root
async def test_the_rules_survive_opening_again_with_machines_up(network: Network) -> None:
    slot = await network.claim()
    restarted = Network(network.instance)
    await restarted.sweep({slot.index})
    elements = (await run(["nft", "list", "set", "inet", "space", "slots"], netns=slot.gateway_netns)).stdout.decode()
    assert f'"{slot.link}" . {slot.guest_ip}' in elements


@pytest.mark.root
async def test_removing_leaves_no_namespace_and_no_link(network: Network) -> None:
    await network.prepare(2)
    await network.remove()
    await network.remove()
    assert own_namespaces(network) == set()
    assert "sb-" not in (await run(["ip", "-o", "link"])).stdout.decode()


@pytest.mark.root
async def test_two_instances_side_by_side_keep_to_their_own(network: Network) -> None:
    other = Network(Instance(f"test-{uuid.uuid4()}"))
    await network.prepare(1)
    await other.prepare(1)
    await other.sweep(())
    await other.remove()
    assert len(own_namespaces(network)) == 2


def test_a_range_that_the_host_routes_is_not_chosen() -> None:
    instance = Instance("some")
    first = free_range(instance, [])
    assert free_range(instance, []) == first
    assert free_range(instance, [first]) != first
    assert free_range(instance, [IPv4Network("0.0.0.0/0")]) == first


@pytest.mark.parametrize("routes", [RANGES, [IPv4Network("10.0.0.0/8")], [IPv4Network("0.0.0.0/1")]])
def test_a_host_that_routes_every_range_gets_one_all_the_same(routes: Sequence[IPv4Network]) -> None:
    instance = Instance("some")
    assert free_range(instance, routes) == free_range(instance, [])


@pytest.mark.root
async def test_the_hosts_routes_are_known() -> None:
    assert all(route.version == 4 for route in await host_routes())


def test_addresses_and_links_of_slots_never_collide() -> None:
    network = Network(Instance("some"), subnet=IPv4Network("10.72.0.0/16"))
    slots = [network.slot(index) for index in range(1, 4001)]
    assert len({slot.guest_ip for slot in slots} | {slot.gateway_ip for slot in slots}) == 8000
    assert len({slot.guest_mac for slot in slots}) == 4000
    assert all(len(slot.link) <= 15 for slot in slots)


async def test_surplus_slots_are_removed_with_their_links(network: Network) -> None:
    await network.prepare(3)
    surplus = network.slot(3)
    await network.trim(2)
    assert network.free == 2
    assert not netns.exists(surplus.netns)
    await network.prepare(3)
    assert netns.exists(surplus.netns)
