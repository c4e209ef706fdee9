"""The node's end of the channel to one guest agent.

PLACEHOLDER SIGNATURES (replaced by the real thing; names and meanings stay):

@dataclass Output(process_id, stream: "stdout"|"stderr"|"pty", offset: int, data: bytes)
@dataclass Started(process_id, os_pid: int)
@dataclass Exited(process_id, exit_code: int|None, signal: str|None, reason: str|None, stdout_bytes, stderr_bytes)

class Guest:
    @classmethod
    async def open(cls, stream: ByteStream, *, token: str, deliver: Callable[[Output|Exited], Awaitable[None]]) -> "Guest"
        mutual authentication, version check. `deliver` is awaited for each event in order per process; output that it has
        returned for is acknowledged to the agent (so: deliver writes the journal, then returns).
    async def run(self) -> None                 # the reading loop; returns/raises GuestUnreachable when the stream ends
    async def aclose(self) -> None
    async def ping(self) -> float
    async def spawn(self, process_id, spec: CommandSpec, *, env: Mapping[str,str], default_user: str) -> int   # os pid; idempotent by process_id
        raises SpawnFailed(exit_code=126|127, message)
    async def attach(self, process_id, *, offsets: Mapping[str,int]) -> None   # after a reconnect: send me output from these offsets
    async def processes(self) -> list[ProcessStatus]
    async def forget(self, process_id) -> None  # the agent may drop an ended process
    async def signal / write_stdin / close_stdin / resize
    read_file, write_file, stat_file, list_files, move_file, make_directory, remove_file, watch_files, read_archive, write_archive:
        as in core.ports.NodeClient without `ref`
    async def stats(self) -> Mapping[str, float]
    async def set_clock(self, unix_seconds: float); async def add_entropy(self, data: bytes); async def personalise(hostname, env, token, ...)
"""
