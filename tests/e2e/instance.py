"""A real instance: `space up` as its own process, real gVisor, a temporary data directory and free ports."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from space.sdk import Client
from space.sdk.settings import read_cli_file

SOURCE = Path(__file__).parent.parent.parent / "src"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Instance:
    """Starts, kills and removes one server; its ports stay the same over restarts."""

    def __init__(self, data_dir: Path, templates: Path, settings: Mapping[str, str] | None = None) -> None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data_dir / "templates").symlink_to(templates)
        self.data_dir = data_dir
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "PYTHONPATH": str(SOURCE),
            "SPACE_DATA_DIR": str(data_dir),
            "SPACE_LISTEN": f"127.0.0.1:{free_port()}",
            "SPACE_DATA_PLANE_LISTEN": f"127.0.0.1:{free_port()}",
            **(settings or {}),
        }

    def space(self, *arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        done = subprocess.run(
            self.argv(*arguments),
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "space", *arguments]

    def up(self, **environment: str) -> None:
        self.environment.update(environment)
        self.space("up", "--detach")

    @property
    def pids(self) -> list[int]:
        """SPACE's own processes."""
        return [int(path.read_text()) for path in (self.data_dir / "run").glob("*.pid")]

    def kill_9(self) -> None:
        """End all of SPACE's own processes as an out-of-memory killer would."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def client(self, token: str | None = None) -> Client:
        found = read_cli_file(self.data_dir / "cli.json")
        assert found is not None, "the server left no cli.json"
        return Client(api_url=found["api_url"], token=token or found["token"])

    def machine_pids(self, sandbox_id: str = "") -> list[int]:
        """The sentries of this instance's machines, or of one sandbox's: others are warm, or a template's."""
        root = f"--root=/run/space/{self.tag}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes()
                if root in line and b"\0boot\0" in line and sandbox_id.encode() in line:
                    found.append(int(path.parent.name))
        return found

    @property
    def tag(self) -> str:
        from space.host.instance import Instance as Names

        return Names((self.data_dir / "instance-id").read_text().strip()).tag

    def remove(self) -> None:
        """End everything that this instance started or made."""
        self.space("down", "--machines", check=False)
