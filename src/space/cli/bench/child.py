"""A helper process of a measurement: asked and answering in JSON lines, gone when its stdin closes."""

import json
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any, Literal

from space.cli.failure import CommandError

GONE_SECONDS = 60


class Child:
    """One such process; as a context manager it is ended and waited for."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = module.rpartition(".")[2]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `__exit__` closes it; not a pipe, which would fill
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C ends us; it then sees its stdin close and cleans up
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a question and return the answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 - both are pipes
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        line = stdout.readline()
        if not line:
            raise self._failure()
        answer = json.loads(line)
        if "error" in answer:
            raise CommandError(f"{self._name}: {answer['error']}")
        return dict(answer)

    def _failure(self) -> CommandError:
        self._process.communicate()
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return CommandError(f"the helper {self._name} ended: {said[-1] if said else 'it said nothing'}")

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        try:
            self._process.communicate(timeout=GONE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()
        return False
