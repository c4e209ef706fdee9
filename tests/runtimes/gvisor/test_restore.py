"""What goes on in a machine that was saved and started elsewhere, when the first one and all that it had are gone."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtimes.gvisor.agents import PYTHON, AgentGuest, agent_guest

from space.core.command import Pty
from space.core.sandbox import Resources

pytestmark = [pytest.mark.anyio, pytest.mark.root]


@pytest.fixture
async def guest(make_host: Callable[..., Any], agent_dir: Path) -> AsyncIterator[AgentGuest]:
    found = await agent_guest(make_host("agent"), agent_dir)
    yield found
    await found.machine.stop()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "image"


OPEN = """
import os, select, socket, time
def gone(path, text):
    file = open(path, "w+"); file.write(text); file.flush(); os.unlink(path)
    return file
files = [gone(place + "/gone", place) for place in ("/root", "/tmp", "/dev/shm")]
os.mkdir("/root/folder"); folder = os.open("/root/folder", os.O_RDONLY); os.rmdir("/root/folder")
template = open("/etc/passwd")
listener = socket.create_server(("127.0.0.1", 5555))
client = socket.create_connection(("127.0.0.1", 5555)); server, _ = listener.accept()
named = socket.socket(socket.AF_UNIX); named.bind("/tmp/socket"); named.listen()
near = socket.socket(socket.AF_UNIX); near.connect("/tmp/socket"); far, _ = named.accept()
left, right = socket.socketpair(); reading, writing = os.pipe()
epoll = select.epoll(); epoll.register(server.fileno(), select.EPOLLIN)
client.send(b"sent before"); os.write(writing, b"in the pipe")
counted = 0
print("ready")
while not os.path.exists("/tmp/go"):
    counted += 1; time.sleep(0.02)
for file in files: file.seek(0); print(file.read())
print(template.readline()[:4], os.fstat(folder).st_mode & 0o40000 > 0, os.read(reading, 99).decode())
print(server.recv(99).decode()); client.send(b"sent after")
print(epoll.poll(5) == [(server.fileno(), select.EPOLLIN)], server.recv(99).decode(), epoll.poll(0.1))
near.send(b"by name"); print(far.recv(99).decode()); left.send(b"in a pair"); print(right.recv(99).decode())
again = socket.create_connection(("127.0.0.1", 5555)); accepted, _ = listener.accept()
again.send(b"a new caller"); print(accepted.recv(99).decode(), "counted", counted)
"""


async def test_what_a_program_has_open_goes_on(guest: AgentGuest, image: Path) -> None:
    """Files that were deleted, pipes, sockets within the guest, what an epoll waits for, memory."""
    async with guest.connected():
        program = await guest.start(*PYTHON, OPEN)
        await guest.says(program, b"ready\n")
        await asyncio.sleep(0.2)
    other = await guest.moved(image)
    async with other.connected():
        await other.attach(program)
        await asyncio.sleep(0.2)
        await other.sh("touch /tmp/go")
        await other.until(lambda: program in other.exits)
        assert other.exits[program].exit_code == 0, other.output[program]
        *said, last = other.output[program].decode().splitlines()
        assert said == [
            *("ready", "/root", "/tmp", "/dev/shm", "root True in the pipe", "sent before"),
            *("True sent after []", "by name", "in a pair"),
        ]
        assert last.startswith("a new caller counted ")
        assert int(last.split()[-1]) > 10
    await other.machine.stop()


async def test_files_of_the_root_and_of_tmp_are_there(guest: AgentGuest, image: Path) -> None:
    async with guest.connected():
        await guest.sh("seq 20000 >/root/kept; seq 20000 >/tmp/kept; rm /bin/wget; echo x >>/etc/passwd; sync")
    other = await guest.moved(image)
    async with other.connected():
        assert await other.sh("seq 20000 | cmp - /root/kept; cat /root/kept /tmp/kept | wc -l") == "40000"
        assert await other.sh("ls /bin/wget 2>&1 | grep -c 'No such'; tail -n 1 /etc/passwd") == "1\nx"
    await other.machine.stop()


async def test_a_terminal_goes_on(guest: AgentGuest, image: Path) -> None:
    async with guest.connected():
        shell = await guest.start("sh", pty=Pty(cols=81, rows=23))
        await guest.guest.write_stdin(shell, b"value=41; stty size\n")
        await guest.says(shell, b"23 81\r\n")
    other = await guest.moved(image)
    async with other.connected():
        await other.attach(shell)
        await other.guest.resize(shell, Pty(cols=132, rows=50))
        await other.guest.write_stdin(shell, b"echo $((value + 1)); stty size; exit 7\n")
        await other.until(lambda: shell in other.exits)
        assert b"42\r\n50 132\r\n" in other.output[shell]
        assert other.exits[shell].exit_code == 7
    await other.machine.stop()


async def test_output_that_nobody_had_taken_arrives_once(guest: AgentGuest, image: Path) -> None:
    script = "i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo $i; done; sleep 1; echo end"
    async with guest.connected():
        lines = await guest.start("sh", "-c", script)
    other = await guest.moved(image)
    async with other.connected():
        await other.attach(lines)
        await other.until(lambda: lines in other.exits)
        assert other.output[lines].split() == [*(str(number).encode() for number in range(1, 2001)), b"end"]
    await other.machine.stop()


SERVER = """
import select, socket
listener = socket.create_server(("0.0.0.0", 7100)); epoll = select.epoll(); epoll.register(listener.fileno(), 1)
callers, polls = {}, 0
print("ready")
while True:
    for fd, events in epoll.poll():
        polls += 1
        if fd == listener.fileno():
            caller, _ = listener.accept(); callers[caller.fileno()] = caller; epoll.register(caller.fileno(), 1)
        else:
            try: data = callers[fd].recv(99)
            except OSError: data = b""
            if data: callers[fd].send(b"%d" % polls)
            else: epoll.unregister(fd); callers.pop(fd).close()
"""


async def ask(guest: AgentGuest) -> Any:
    stream = await guest.machine.connect(7100)
    await stream.send(b"?")
    async with asyncio.timeout(10):
        return stream, int(await stream.receive())


async def test_a_server_whose_caller_was_cut_off_serves_the_next_one_and_does_not_spin(
    guest: AgentGuest, image: Path
) -> None:
    """Cut by runsc itself, the closed connection would be reported for ever, a hundred thousand times a second."""
    async with guest.connected():
        server = await guest.start(*PYTHON, SERVER)
        await guest.says(server, b"ready\n")
    first, _ = await ask(guest)
    await guest.machine.snapshot(image)
    other = await guest.restored(image)
    for each in (guest, other):
        second, _ = await ask(each)
        await asyncio.sleep(0.5)
        third, polls = await ask(each)
        assert polls < 20
        await second.aclose()
        await third.aclose()
    assert await first.receive() == b""
    await first.aclose()
    await other.machine.stop()


async def test_a_listener_answers_at_the_new_address(guest: AgentGuest, image: Path) -> None:
    async with guest.connected():
        server = await guest.start(*PYTHON, SERVER)
        await guest.says(server, b"ready\n")
    other = await guest.moved(image)
    assert other.spec.slot.guest_ip != guest.spec.slot.guest_ip
    stream, _ = await ask(other)
    await stream.aclose()
    async with other.connected():
        shown = await other.sh("ip -4 addr show dev eth0 | grep inet; ip route | grep default")
        assert other.spec.slot.guest_ip in shown
        assert other.spec.slot.gateway_ip in shown
        assert guest.spec.slot.guest_ip not in shown
    await other.machine.stop()


async def test_a_connected_udp_socket_does_not_keep_a_machine_from_starting(guest: AgentGuest, image: Path) -> None:
    program = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 53)); print("ready")
while True: time.sleep(1)
"""
    async with guest.connected():
        await guest.says(await guest.start(*PYTHON, program), b"ready\n")
    other = await guest.moved(image)
    again = await other.moved(image)  # the socket still has the address of the machine before the last
    async with again.connected():
        program = "import socket; s = socket.create_server(('0.0.0.0', 1)); u = socket.socket(2, 2)"
        assert await again.python(f"{program}; u.connect(('192.0.2.1', 1)); print(u.getsockname()[0])") == (
            again.spec.slot.guest_ip
        )
        assert sum(each.is_running for each in await again.guest.processes()) == 1
    await again.machine.stop()
    assert again.host.leftovers() == []


async def test_a_busy_writer_leaves_a_consistent_file_and_goes_on(guest: AgentGuest, image: Path) -> None:
    script = "i=0; while :; do i=$((i + 1)); echo $i >>/root/log; done"
    check = "wc -l </root/log; seq $(wc -l </root/log) | cmp -n $(wc -c </root/log) - /root/log && echo consistent"
    async with guest.connected():
        writer = await guest.start("sh", "-c", script)
        await asyncio.sleep(0.5)
    await guest.machine.snapshot(image)
    other = await guest.restored(image)
    for each in (guest, other):
        async with each.connected():
            await asyncio.sleep(0.3)
            before = int(await each.sh("wc -l </root/log"))
            await asyncio.sleep(0.3)
            assert int(await each.sh("wc -l </root/log")) > before > 10
            await each.guest.signal(writer, "SIGKILL")
            assert (await each.sh(f"sleep 0.2; {check}")).endswith("consistent")
    await other.machine.stop()


async def test_the_date_is_right_however_long_it_lay(guest: AgentGuest, image: Path) -> None:
    async with guest.connected():
        pass
    await guest.machine.snapshot(image)
    await guest.gone()
    await asyncio.sleep(2.2)
    other = await guest.restored(image)
    async with other.connected():
        await other.guest.personalise(hostname="later")
        assert abs(int(await other.sh("date +%s")) - time.time()) < 1.5  # whole seconds
        assert abs(float(await other.python("import time; print(time.time())")) - time.time()) < 0.5
    await other.machine.stop()


async def test_a_machine_of_a_gigabyte_goes_on(make_host: Callable[..., Any], agent_dir: Path, image: Path) -> None:
    resources = Resources(memory_mib=1280, disk_mib=64)
    guest = await agent_guest(make_host("agent"), agent_dir, resources=resources)
    program = """
import os, hashlib, time
block = os.urandom(1 << 20); memory = [bytes([n & 255]) + block[1:] for n in range(1000)]
digest = lambda: hashlib.blake2b(b"".join(hashlib.blake2b(each).digest() for each in memory)).hexdigest()
before = digest(); print("ready")
while not os.path.exists("/tmp/go"): time.sleep(0.02)
print("same" if digest() == before else "DIFFERENT")
"""
    async with guest.connected():
        holder = await guest.start(*PYTHON, program)
        await guest.until(lambda: b"ready" in guest.output[holder], seconds=120)
    other = await guest.moved(image)
    async with other.connected():
        await other.attach(holder)
        await other.sh("touch /tmp/go")
        await other.until(lambda: holder in other.exits, seconds=120)
        assert other.output[holder] == b"ready\nsame\n"
    await other.machine.stop()


async def test_a_guest_that_uses_nearly_all_of_its_memory_starts_again(guest: AgentGuest, image: Path) -> None:
    """The runtime needs its own part while it restores, and the guest is told only of what is its."""
    program = "x = bytearray(232 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('ready'); input()"
    async with guest.connected():
        total = await guest.sh("head -n 1 /proc/meminfo")
        await guest.says(await guest.start(*PYTHON, program, stdin=True), b"ready\n")
    other = await guest.moved(image)
    async with other.connected():
        assert await other.sh("head -n 1 /proc/meminfo") == total
        assert sum(each.is_running for each in await other.guest.processes()) == 1
    await other.machine.stop()
