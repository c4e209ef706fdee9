"""The network of one instance: a gateway namespace, and slots that a machine's network card goes into.

    gateway namespace                    slot namespace
    sb-7  10.72.0.14/31  <--- veth --->  eth0  10.72.0.15/31, default route to .14

The namespaces have no link to the host.  Slots are made ahead in batches, because a batch of a hundred costs 5 ms a
slot and a single one ten times that (egress.md §3); claiming one is a dictionary assignment.

A link's neighbour entry is permanent: a guest that boots gets the first packet without ARP, whose retry would cost
a second, and cannot take another's address by ARP.
"""

import asyncio
import hashlib
import ipaddress
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network

from space.core.errors import CapacityUnavailable
from space.core.node import Slot
from space.host import netns, nftables
from space.host.instance import Instance
from space.host.process import ProcessFailed, run

#: Ranges that an instance may use, in an order that its id decides: 10.64-10.127, away from what homes, clouds and
#: container engines usually take.
RANGES = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(64, 128))
MAX_SLOTS = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNetwork:
    """A slot's network; the fields are those of `core.node.Slot`."""

    index: int
    netns: str
    gateway_netns: str
    guest_ip: str
    gateway_ip: str
    prefix_length: int = 31

    @property
    def link(self) -> str:
        """The gateway's end of the slot's cable."""
        return f"sb-{self.index}"

    @property
    def guest_mac(self) -> str:
        return f"02:5a:00:00:{self.index >> 8:02x}:{self.index & 255:02x}"


class Network:
    """Owns the gateway namespace and all slots of an instance.  Methods may be called from several tasks."""

    def __init__(self, instance: Instance, *, subnet: IPv4Network | None = None) -> None:
        self.instance = instance
        self.gateway_netns = instance.gateway_netns
        self._subnet = subnet
        self._free: list[int] = []
        self._claimed: set[int] = set()
        self._changing = asyncio.Lock()
        self._is_open = False

    @property
    def subnet(self) -> IPv4Network:
        if self._subnet is None:
            raise RuntimeError("open the network first")
        return self._subnet

    @property
    def free(self) -> int:
        """How many slots `claim` can give without making one."""
        return len(self._free)

    def slot(self, index: int) -> SlotNetwork:
        """Return a slot's names and addresses, whether it exists or not."""
        base = int(self.subnet.network_address) + 2 * index
        return SlotNetwork(
            index=index,
            netns=self.instance.slot_netns(index),
            gateway_netns=self.gateway_netns,
            guest_ip=str(ipaddress.ip_address(base + 1)),
            gateway_ip=str(ipaddress.ip_address(base)),
        )

    async def open(self) -> None:
        """Make the gateway namespace and its rules, or adopt those of an earlier process.  Idempotent."""
        async with self._changing:
            await self._open()

    async def _open(self) -> None:
        if self._is_open:
            return
        if netns.is_broken(self.gateway_netns):
            await run(["ip", "netns", "delete", self.gateway_netns])
        if netns.exists(self.gateway_netns):
            self._subnet = await self._marked_subnet() or self._subnet
        if self._subnet is None:
            self._subnet = free_range(self.instance, await host_routes())
        if not netns.exists(self.gateway_netns):
            await run(["ip", "netns", "add", self.gateway_netns])
        netns.harden(self.gateway_netns)
        await _ip(["link set lo up", f"addr replace {self.subnet.network_address}/32 dev lo"], self.gateway_netns)
        await nftables.apply(self.gateway_netns, nftables.RULES)
        self._is_open = True

    async def _marked_subnet(self) -> IPv4Network | None:
        """Read the range that an earlier process chose: its first address lies on the gateway's `lo`."""
        shown = await run(["ip", "-n", self.gateway_netns, "-4", "-json", "addr", "show", "dev", "lo"], check=False)
        for link in json.loads(shown.stdout or b"[]"):
            for address in link.get("addr_info", ()):
                if not address["local"].startswith("127."):
                    return IPv4Network(f"{address['local']}/16")
        return None

    async def prepare(self, count: int) -> None:
        """Make slots, in one batch, until `count` are free."""
        async with self._changing:
            await self._open()
            used = self._claimed.union(self._free)
            wanted = [index for index in range(1, len(used) + count + 1) if index not in used]
            missing = wanted[: max(0, count - len(self._free))]
            if missing and missing[-1] > MAX_SLOTS:
                raise CapacityUnavailable(f"all {MAX_SLOTS} network slots are in use")
            if missing:
                await self._make([self.slot(index) for index in missing])
                self._free += missing

    async def claim(self) -> SlotNetwork:
        """Take a slot; instant while one is free."""
        while not self._free:
            await self.prepare(1)
        index = self._free.pop(0)
        self._claimed.add(index)
        return self.slot(index)

    async def release(self, index: int) -> None:
        """Give a slot back once nothing runs in it; one that is broken is removed instead.  Idempotent.

        runsc strips the addresses and routes from a namespace that it takes over: they are put back.
        """
        if index not in self._claimed:
            return
        async with self._changing:
            is_whole = await self._is_repaired(index)
            if not is_whole:
                await self._remove([index])
            self._claimed.discard(index)
            if is_whole:
                self._free.append(index)

    async def sweep(self, keep: Collection[int]) -> list[int]:
        """After a restart: take `keep` for claimed and free every other slot of this instance; return those freed.

        Nothing may run in the others any more: sweep the runtimes first.  A slot that was half made is removed.
        """
        async with self._changing:
            await self._open()
            existing = {slot for name in netns.names() if (slot := self.instance.slot_of_netns(name)) is not None}
            self._claimed = existing.intersection(keep)
            self._free = []
            links = await _links(self.gateway_netns)
            freed = sorted(existing.difference(keep))
            whole = [index for index in freed if self.slot(index).link in links and await self._is_repaired(index)]
            await self._remove([index for index in freed if index not in whole])
            self._free = whole
            slots = [self.slot(index) for index in (*sorted(self._claimed), *whole)]
            await nftables.apply(self.gateway_netns, nftables.admit((slot.link, slot.guest_ip) for slot in slots))
            return freed

    async def trim(self, count: int) -> None:
        """Remove free slots until at most `count` are left."""
        async with self._changing:
            surplus, self._free = self._free[count:], self._free[:count]
            await self._remove(surplus)

    async def _is_repaired(self, index: int) -> bool:
        """Put back what runsc strips; False if the slot is not whole."""
        slot = self.slot(index)
        try:
            await _ip(["addr flush dev eth0", *_guest_lines(slot)], slot.netns)  # with what `give_addresses` added
        except ProcessFailed:
            return False
        return True

    async def remove(self) -> None:
        """Remove everything of this instance from the kernel.  Idempotent."""
        async with self._changing:
            slots = [slot for name in netns.names() if (slot := self.instance.slot_of_netns(name)) is not None]
            await self._delete_namespaces(slots)
            if netns.exists(self.gateway_netns):
                await run(["ip", "netns", "delete", self.gateway_netns])
            self._free, self._claimed, self._is_open = [], set(), False

    async def _make(self, slots: list[SlotNetwork]) -> None:
        # Half-made slots of an attempt that failed or was killed would be in the way.
        await self._remove([slot.index for slot in slots if netns.exists(slot.netns)])
        await _ip([f"netns add {slot.netns}" for slot in slots])
        for slot in slots:
            netns.harden(slot.netns)
        await _ip([line for slot in slots for line in _gateway_lines(slot)], self.gateway_netns)
        for slot in slots:
            await _ip(_guest_lines(slot), slot.netns)
        await nftables.apply(self.gateway_netns, nftables.admit((slot.link, slot.guest_ip) for slot in slots))

    async def _remove(self, indexes: list[int]) -> None:
        if not indexes:
            return
        for index in indexes:
            slot = self.slot(index)
            pair = [(slot.link, slot.guest_ip)]
            # Add first: deleting what is not there fails.
            await nftables.apply(self.gateway_netns, nftables.admit(pair) + nftables.expel(pair))
        links = await _links(self.gateway_netns)
        gone = [f"link delete {name}" for index in indexes if (name := self.slot(index).link) in links]
        await _ip(gone, self.gateway_netns)
        await self._delete_namespaces(indexes)

    async def _delete_namespaces(self, indexes: Iterable[int]) -> None:
        await _ip([f"netns delete {self.instance.slot_netns(index)}" for index in indexes])


def _gateway_lines(slot: SlotNetwork) -> list[str]:
    return [
        f"link add {slot.link} type veth peer name eth0 address {slot.guest_mac} netns {slot.netns}",
        f"addr add {slot.gateway_ip}/{slot.prefix_length} dev {slot.link}",
        f"link set {slot.link} up",
        f"neigh replace {slot.guest_ip} lladdr {slot.guest_mac} dev {slot.link} nud permanent",
    ]


def _guest_lines(slot: SlotNetwork) -> list[str]:
    return [
        "link set lo up",
        "link set eth0 up",
        f"addr replace {slot.guest_ip}/{slot.prefix_length} dev eth0",
        f"route replace default via {slot.gateway_ip} dev eth0",
    ]


async def give_addresses(slot: Slot, further: Collection[str]) -> None:
    """Put the guest's address back into its slot, where a machine has not started, with further ones beside it."""
    own = SlotNetwork(
        index=slot.index,
        netns=slot.netns,
        gateway_netns=slot.gateway_netns,
        guest_ip=slot.guest_ip,
        gateway_ip=slot.gateway_ip,
        prefix_length=slot.prefix_length,
    )
    beside = [f"addr replace {address}/32 dev eth0" for address in further if address != slot.guest_ip]
    await _ip([*_guest_lines(own), *beside], slot.netns)


async def _ip(lines: list[str], name: str | None = None) -> None:
    """Run `ip -batch`, in a namespace if one is named; the first line that fails ends it."""
    if lines:
        within = ["-n", name] if name else []
        await run(["ip", *within, "-batch", "-"], stdin="\n".join(lines).encode() + b"\n")


async def _links(name: str) -> set[str]:
    shown = await run(["ip", "-n", name, "-json", "link", "show"])
    return {link["ifname"] for link in json.loads(shown.stdout)}


async def host_routes() -> list[IPv4Network]:
    """Return where the host's own routes lead, without the default route."""
    shown = await run(["ip", "-4", "-json", "route", "show", "table", "all"])
    found = []
    for route in json.loads(shown.stdout):
        if route.get("dst", "default") != "default":
            found.append(IPv4Network(route["dst"], strict=False))
    return found


def free_range(instance: Instance, routes: Collection[IPv4Network]) -> IPv4Network:
    """Choose a range that no route of the host touches; the same instance asks for the same one first.

    A host that routes all of 10.0.0.0/8, as in many companies and VPNs, leaves none: then it is the first one all the
    same, which costs nothing but that guests cannot reach that range of the host's, as our namespaces come first.
    """
    start = int.from_bytes(hashlib.sha256(instance.id.encode()).digest()[:2], "big")
    for offset in range(len(RANGES)):
        candidate = RANGES[(start + offset) % len(RANGES)]
        if not any(candidate.overlaps(route) for route in routes if route.prefixlen > 0):
            return candidate
    return RANGES[start % len(RANGES)]
