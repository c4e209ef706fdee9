"""A machine becomes another one: after a restore, for a fork, and when a parked one is given to a sandbox."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.gvisor.agents import PYTHON, AgentGuest, agent_guest

from space.core.errors import GuestUnreachable, InvalidRequest
from space.host.connections import Connections
from space.node.guest import Guest

pytestmark = [pytest.mark.anyio, pytest.mark.root]
NEW_TOKEN = "a token of the new machine alone"


@pytest.fixture
async def guest(make_host: Callable[..., Any], agent_dir: Path) -> AsyncIterator[AgentGuest]:
    found = await agent_guest(make_host("agent"), agent_dir, hostname="first-one")
    yield found
    await found.machine.stop()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "image"


WHO = "hostname; cat /etc/hostname /etc/machine-id; grep 127.0.1.1 /etc/hosts"


async def test_a_machine_is_born_with_its_name_in_the_kernel_and_in_its_files(guest: AgentGuest) -> None:
    async with guest.connected():
        name, file, machine_id, hosts = (await guest.sh(WHO)).splitlines()
        assert (name, file, hosts.split()) == ("first-one", "first-one", ["127.0.1.1", "first-one"])
        assert len(machine_id) == 32
        assert "localhost" in await guest.sh("grep 127.0.0.1 /etc/hosts")


async def test_one_request_changes_all_that_it_is_known_by(guest: AgentGuest, image: Path) -> None:
    async with guest.connected():
        before = (await guest.sh(WHO)).splitlines()
        await guest.sh("echo 192.0.2.7 mine >>/etc/hosts")
        boot_id = guest.guest.boot_id
    other = await guest.moved(image)
    async with other.connected():
        await other.guest.personalise(hostname="second-one", env={"WHO": "the second"}, token=NEW_TOKEN)
        assert other.guest.boot_id != boot_id
        name, file, machine_id, hosts = (await other.sh(WHO)).splitlines()
        assert (name, file, hosts.split()) == ("second-one", "second-one", ["127.0.1.1", "second-one"])
        assert machine_id != before[2]
        assert "192.0.2.7 mine" in await other.sh("cat /etc/hosts")
        assert await other.sh("echo $WHO") == "the second"
    with pytest.raises(GuestUnreachable):
        await Guest.open(await other.machine.connect(other.spec.agent_port), token=other.token, deliver=other._deliver)
    other.token = NEW_TOKEN
    async with other.connected():
        assert await other.sh("hostname") == "second-one"
    await other.machine.stop()


async def test_what_cannot_be_right_changes_nothing(guest: AgentGuest) -> None:
    async with guest.connected():
        before, boot_id = await guest.sh(WHO), guest.guest.boot_id
        for wrong in (
            {"hostname": "not a name"},
            {"hostname": "-x"},
            {"hostname": "x" * 65},
            {"hostname": "good", "token": "short"},
            {"hostname": "good", "entropy": b""},
            {"hostname": "good", "entropy": bytes(5000)},
            {"hostname": "good", "unix_seconds": -1},
        ):
            with pytest.raises(InvalidRequest):
                await guest.guest.personalise(**wrong)
        assert await guest.sh(WHO) == before
        assert guest.guest.boot_id == boot_id
    async with guest.connected():
        assert guest.guest.boot_id == boot_id


async def test_forks_differ_in_name_machine_id_and_chance(guest: AgentGuest, image: Path) -> None:
    draw = "import os; print(os.urandom(16).hex()); print(open('/dev/urandom', 'rb').read(16).hex())"
    async with guest.connected():
        pass
    await guest.machine.snapshot(image)
    children = await asyncio.gather(*(guest.restored(image) for _ in range(3)))
    seen: list[str] = []
    for number, each in enumerate((guest, *children)):
        async with each.connected():
            await each.guest.personalise(hostname=f"fork-{number}", disown=True)
            seen += (await each.sh("hostname; cat /etc/machine-id")).splitlines()
            seen += (await each.python(draw)).splitlines()
            seen.append(each.spec.slot.guest_ip)
            assert each.spec.slot.guest_ip in await each.sh("ip addr show dev eth0")
    assert len(set(seen)) == 4 * 5
    await asyncio.gather(*(each.machine.stop() for each in children))


async def test_a_fork_goes_on_with_what_ran_but_is_not_asked_for_it(guest: AgentGuest, image: Path) -> None:
    script = "i=0; while :; do i=$((i + 1)); echo line $i; echo $i >/tmp/next; mv /tmp/next /tmp/count; done"
    async with guest.connected():
        writer = await guest.start("sh", "-c", script)
        ending = await guest.start("sh", "-c", "sleep 1; echo said; exit 3")
        await guest.says(writer, b"line 10\n")
    await guest.machine.snapshot(image)
    child = await guest.restored(image)
    child.output.clear()
    async with child.connected():
        await child.guest.personalise(hostname="child", disown=True)
        assert await child.guest.processes() == []
        before = int(await child.sh("cat /tmp/count"))
        await asyncio.sleep(1.5)
        assert int(await child.sh("cat /tmp/count")) > before  # nobody reads it, and it does not block
        assert writer not in child.output
        assert ending not in child.output
        assert not {writer, ending} & set(child.exits)
        assert "Z" not in (await child.sh("for f in /proc/[0-9]*/stat; do cut -d' ' -f3 $f; done")).split()
        await child.guest.forget(writer)
    async with guest.connected():
        assert {each.process_id for each in await guest.guest.processes()} >= {writer, ending}
    await child.machine.stop()


async def test_the_first_command_after_a_rehearsal_waits_for_no_fork_of_the_agent(guest: AgentGuest) -> None:
    async with guest.connected():
        await guest.guest.prewarm()
        await guest.guest.prewarm()
        listing = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q 'agent[.]pyz' && echo ${p#/proc/}; done"
        assert (await guest.sh(listing)).split() == ["1", "2", "3"]  # agent, zygote, the user's spawner
        assert (await guest.sh(listing)).split() == ["1", "2", "3"]
        assert all(each.process_id.startswith("prc") for each in await guest.guest.processes())


async def test_after_taking_leave_nobody_is_connected(guest: AgentGuest) -> None:
    async with guest.connected():
        await guest.sh("true")
        strangers = [await guest.machine.connect(guest.spec.agent_port) for _ in range(3)]
        await asyncio.sleep(0.1)
    for stranger in strangers:
        assert await stranger.receive() == b""
        await stranger.aclose()
    await asyncio.sleep(0.1)
    connections = Connections(guest.spec.slot.gateway_netns, guest.spec.slot.guest_ip)
    assert connections.reset() == 0
    connections.close()
    async with guest.connected():
        assert await guest.sh("echo back") == "back"


async def test_root_in_the_guest_cannot_do_what_the_agent_can(guest: AgentGuest) -> None:
    """The agent may name the machine; no program that it starts may, nor take the right from it."""
    attack = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
    if b"agent" + b".pyz" in open(f"/proc/{pid}/cmdline", "rb").read():
        print("attached" if libc.ptrace(16, pid, 0, 0) == 0 else "refused", end=" ")
        try: open(f"/proc/{pid}/mem", "rb+"); print("opened", end=" ")
        except OSError: print("refused", end=" ")
print("named" if libc.sethostname(b"evil", 4) == 0 else "refused", end=" ")
print("mounted" if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else "refused", end=" ")
print("entered" if libc.unshare(0x4000000) == 0 else "refused")
"""
    async with guest.connected():
        assert (await guest.python(attack)).split() == ["refused"] * 9
        status = await guest.sh("grep -h Cap /proc/self/status")
        sets = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines()}
        assert not any(each & 1 << 21 for each in sets.values())
        assert await guest.sh("hostname") == "first-one"


async def test_a_guest_that_puts_pipes_and_links_into_the_way_does_not_stop_its_agent(guest: AgentGuest) -> None:
    async with guest.connected():
        await guest.sh(
            "rm /etc/hostname /etc/hosts /etc/machine-id; mkdir /etc/hostname.space-new;"
            "ln -s /root/target /etc/hostname; ln -s /dev/zero /etc/hosts; ln -s /proc/1/fd/0 /etc/machine-id"
        )
        async with asyncio.timeout(10):
            await guest.guest.personalise(hostname="second-one")
        assert await guest.sh("hostname; ls /root") == "second-one"
        assert len(await guest.sh("cat /etc/machine-id")) == 32


async def test_a_program_that_ran_before_sees_the_new_name(guest: AgentGuest, image: Path) -> None:
    program = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.02)\nprint(os.uname().nodename)"
    async with guest.connected():
        waiting = await guest.start(*PYTHON, program)
    other = await guest.moved(image)
    async with other.connected():
        await other.guest.personalise(hostname="second-one")
        await other.attach(waiting)
        await other.sh("touch /tmp/go")
        await other.until(lambda: waiting in other.exits)
        assert other.output[waiting] == b"second-one\n"
    await other.machine.stop()
