"""What a guest, as root in its sandbox, tries and must not get.  Each test is named after the attack."""

import asyncio
import contextlib
import json
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from space.host import linux, netns
from space.host.process import run

pytestmark = [pytest.mark.anyio, pytest.mark.root]

TRY = "nc -w 1 {address} {port} </dev/null >/dev/null 2>&1 && echo open || echo closed"


@pytest.fixture
async def guest(make_host: Callable[..., Any]) -> AsyncIterator[Any]:
    """A machine with a root shell behind its port."""
    host = make_host("shell")
    spec = await host.spec()
    machine = await host.runtime().start(spec)

    class Guest:
        def __init__(self) -> None:
            self.host, self.spec, self.machine = host, spec, machine

        async def run(self, script: str, timeout: float = 30) -> str:
            return (await host.ask(machine, script, timeout=timeout)).strip()

        async def dropped(self, counter: str) -> int:
            """Return how many packets the gateway dropped for this reason."""
            argv = ["nft", "-j", "list", "counter", "inet", "space", f"c_{counter}"]
            shown = json.loads((await run(argv, netns=spec.slot.gateway_netns)).stdout)
            return int(shown["nftables"][1]["counter"]["packets"])

    yield Guest()
    await machine.stop()


@pytest.fixture
def listener() -> Callable[[str, str], socket.socket]:
    """Return a maker of listening sockets in a namespace."""

    def listen(name: str, address: str) -> socket.socket:
        with linux.network_namespace(netns.path_of(name)):
            made = socket.create_server((address, 0))
        return made

    return listen


async def test_guest_cannot_reach_the_gateways_own_ports(guest: Any, listener: Any) -> None:
    slot = guest.spec.slot
    with listener(slot.gateway_netns, slot.gateway_ip) as server:
        before = await guest.dropped("input")
        assert await guest.run(TRY.format(address=slot.gateway_ip, port=server.getsockname()[1])) == "closed"
    assert await guest.dropped("input") > before


async def test_guest_cannot_reach_the_hosts_services(guest: Any) -> None:
    shown = (await run(["ip", "-o", "-4", "addr", "show"])).stdout.decode()
    addresses = [line.split()[3].split("/")[0] for line in shown.splitlines()]
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0.1)
        for address in {*addresses, "127.0.0.1"}:
            assert await guest.run(TRY.format(address=address, port=server.getsockname()[1])) == "closed"
        with pytest.raises(TimeoutError):
            server.accept()


async def test_guest_cannot_reach_the_internet_or_the_metadata_service(guest: Any) -> None:
    before = await guest.dropped("forward")
    for address in ("169.254.169.254", "192.0.2.1", "198.51.100.1"):
        assert await guest.run(TRY.format(address=address, port=80)) == "closed"
    assert await guest.dropped("forward") > before


async def test_guest_cannot_reach_another_guest(guest: Any) -> None:
    spec = await guest.host.spec()
    other = await guest.host.runtime().start(spec)
    assert await guest.host.ask(other, "echo up") == "up\n"
    assert await guest.run(TRY.format(address=spec.slot.guest_ip, port=spec.agent_port)) == "closed"
    assert await guest.host.ask(other, "echo up") == "up\n"
    await other.stop()


async def test_guest_cannot_ask_a_name_server(guest: Any) -> None:
    before = await guest.dropped("protocol")
    await guest.run(f"nslookup example.org {guest.spec.slot.gateway_ip} 2>&1")
    assert await guest.dropped("protocol") > before


async def test_guest_cannot_use_another_guests_address(guest: Any) -> None:
    other = guest.host.network.slot(guest.spec.slot.index + 1).guest_ip
    before = await guest.dropped("spoofed")
    await guest.run(
        f"ip addr add {other}/32 dev eth0; nc -w 1 -s {other} {guest.spec.slot.gateway_ip} 80 </dev/null 2>&1"
    )
    # If the guest's kernel refuses the address, nothing was sent at all.
    has_address = other in await guest.run("ip addr show dev eth0")
    assert not has_address or await guest.dropped("spoofed") > before


@pytest.mark.parametrize(
    ("counter", "protocol", "is_forged", "fragment"),
    [
        ("spoofed", socket.IPPROTO_TCP, True, 0),
        ("protocol", socket.IPPROTO_UDP, False, 0),
        ("protocol", socket.IPPROTO_ICMP, False, 0),
        ("protocol", socket.IPPROTO_GRE, False, 0),
        ("fragment", socket.IPPROTO_TCP, False, 0x2000),
        ("input", socket.IPPROTO_TCP, False, 0),
    ],
)
async def test_no_forged_packet_passes_even_of_a_guest_that_broke_out_of_its_kernel(
    guest: Any, counter: str, protocol: int, is_forged: bool, fragment: int
) -> None:
    """Sent from the slot's own namespace, where its kernel sits."""
    slot = guest.spec.slot
    before = await guest.dropped(counter)
    source = guest.host.network.slot(slot.index + 1).guest_ip if is_forged else slot.guest_ip
    gateway = await _link_address(slot.gateway_netns, f"sb-{slot.index}")
    own = await _link_address(slot.netns, "eth0")
    packet = _ip_packet(source, slot.gateway_ip, protocol, fragment)
    with linux.network_namespace(netns.path_of(slot.netns)):
        card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with card:
        card.bind(("eth0", 0))
        card.send(gateway + own + b"\x08\x00" + packet)
    await asyncio.sleep(0.1)
    assert await guest.dropped(counter) > before


async def test_guest_has_no_ipv6(guest: Any) -> None:
    with linux.network_namespace(netns.path_of(guest.spec.slot.gateway_netns)):
        assert Path("/proc/thread-self/net/if_inet6").read_text() == ""
    assert "inet6" not in await guest.run("ip addr show dev eth0")


async def test_guest_cannot_change_the_template(guest: Any) -> None:
    said = await guest.run("echo evil >/etc/passwd; rm -f /bin/wget; cat /etc/passwd; ls /bin | grep -c wget")
    assert said == "evil\n0"
    assert "evil" not in (guest.spec.rootfs / "etc/passwd").read_text()
    assert (guest.spec.rootfs / "bin/wget").is_symlink()


async def test_guest_cannot_change_the_agents_files(guest: Any) -> None:
    await guest.run("echo x >/.space/evil; mount -o remount,rw /.space; echo x >/.space/evil")
    assert list(guest.spec.agent_dir.iterdir()) == []


async def test_what_guests_share_cannot_be_changed_even_by_one_that_broke_out_of_its_kernel(guest: Any) -> None:
    gofer = guest.machine.handle.details["gofer_pid"]
    lines = [line.split() for line in Path(f"/proc/{gofer}/mountinfo").read_text().splitlines()]
    options = {fields[4]: fields[5].split(",") for fields in lines}
    for shared in ("/", "/.space"):
        assert "ro" in options[shared], shared
    assert not any(str(guest.spec.agent_dir) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


async def test_guest_cannot_read_the_token_a_second_time(guest: Any) -> None:
    assert await guest.run("cat <&3; echo; cat <&3; cat /proc/1/fd/3") == guest.spec.token


async def test_the_token_is_in_no_file_and_no_command_line(guest: Any) -> None:
    token = guest.spec.token
    for entry in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
        with contextlib.suppress(OSError):
            assert token.encode() not in entry.read_bytes()
    for path in (*guest.spec.state_dir.rglob("*"), *(guest.host.instance.run_dir / "gvisor").rglob("*")):
        if path.is_file():
            assert token not in path.read_text(errors="replace")
    assert token not in await guest.run("cat /proc/1/environ /proc/1/cmdline; mount")


async def test_a_users_host_account_cannot_look_into_the_runtimes_state(guest: Any) -> None:
    for directory in (guest.spec.state_dir / guest.spec.machine_id, guest.host.instance.run_dir / "gvisor"):
        assert stat.S_IMODE(directory.stat().st_mode) & 0o077 == 0


async def test_guest_sees_no_process_and_no_variable_of_the_host(guest: Any) -> None:
    assert "runsc" not in await guest.run("ps")
    assert await guest.run("cat /proc/1/environ | tr '\\0' '\\n' | cut -d= -f1 | sort | head -c 200") in (
        "HOME\nPATH",
        "",
    )


async def test_guest_cannot_mount_the_hosts_disk(guest: Any) -> None:
    said = await guest.run(
        "mkdir -p /mnt; for d in vda sda nvme0n1; do mount -t ext4 /dev/$d /mnt && echo mounted; done; ls /mnt"
    )
    assert "mounted" not in said
    assert not any(line in said for line in ("etc", "usr"))


async def test_guest_gets_no_descriptor_of_the_server(guest: Any) -> None:
    with (guest.host.directory / "secret").open("w"):
        said = await guest.run("ls -l /proc/1/fd")
    assert "secret" not in said
    assert all(int(line.split()[8]) <= 3 for line in said.splitlines() if " -> " in line and "host:" in line)


def _ip_packet(source: str, target: str, protocol: int, fragment: int) -> bytes:
    """Return an IPv4 packet with the beginning of a TCP connection, whatever its protocol field says."""
    payload = struct.pack("!HHIIBBHHH", 40000, 80, 1, 0, 5 << 4, 2, 1024, 0, 0)
    payload = payload[:16] + struct.pack("!H", _checksum(_pseudo(source, target, payload))) + payload[18:]
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, fragment, 64, protocol, 0) + addresses
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:] + payload


def _pseudo(source: str, target: str, payload: bytes) -> bytes:
    return socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!HH", 6, len(payload)) + payload


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


async def _link_address(name: str, link: str) -> bytes:
    shown = (await run(["ip", "-n", name, "-o", "link", "show", "dev", link])).stdout.decode()
    return bytes.fromhex(shown.split("link/ether ")[1].split()[0].replace(":", ""))
