"""A sentry that counts: it takes as many resumes as there were pauses, and one too many ends it."""

from pathlib import Path

import pytest

from space.core.errors import RuntimeFailed
from space.runtimes.gvisor.standstill import Pauses

pytestmark = pytest.mark.anyio


class Sentry:
    """Counts, and dies of one resume too many; a crash of ours may come before or after it does what it is asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0
        self.crash = ""  #: `before` or `after` the next call

    async def ask(self, method: str) -> None:
        crash, self.crash = self.crash, ""
        if crash == "before":
            raise KeyboardInterrupt
        self.count += 1 if method == "Pause" else -1
        assert self.count >= 0, "it panicked"
        if crash == "after":
            raise KeyboardInterrupt

    async def runs(self) -> bool:
        return not self.count

    def process(self) -> Pauses:
        """Return what a process of the node has, without the memory of those before it."""
        return Pauses(self.directory, ask=self.ask, runs=self.runs)


@pytest.fixture
def sentry(tmp_path: Path) -> Sentry:
    return Sentry(tmp_path)


async def test_either_may_be_repeated(sentry: Sentry) -> None:
    await sentry.process().resume()
    for _ in range(3):
        await sentry.process().pause()
        await sentry.process().pause()
        assert sentry.count == 1
        await sentry.process().resume()
        await sentry.process().resume()
        assert sentry.count == 0
    assert list(sentry.directory.iterdir()) == []


@pytest.mark.parametrize("crash", ["before", "after"])
@pytest.mark.parametrize("during", ["pause", "resume"])
@pytest.mark.parametrize("then", [("resume",), ("pause", "resume"), ("pause", "pause", "resume")])
async def test_a_crash_at_any_moment_leaves_no_machine_asleep_or_dead(
    sentry: Sentry, crash: str, during: str, then: tuple[str, ...]
) -> None:
    if during == "resume":
        await sentry.process().pause()
    sentry.crash = crash
    with pytest.raises(KeyboardInterrupt):
        await getattr(sentry.process(), during)()
    for each in then:
        await getattr(sentry.process(), each)()
        assert (sentry.count > 0) is (each == "pause")
    assert sentry.count == 0


async def test_one_that_never_runs_again_is_an_error(sentry: Sentry) -> None:
    async def never() -> bool:
        return False

    sentry.crash = "after"
    with pytest.raises(KeyboardInterrupt):
        await sentry.process().pause()
    sentry.count = 100
    with pytest.raises(RuntimeFailed, match="stands still"):
        await Pauses(sentry.directory, ask=sentry.ask, runs=never).resume()
