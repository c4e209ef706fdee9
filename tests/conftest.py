"""What every test may use.  Marks: `root` (root, runsc and the base template), `live`
(starts processes or servers), `soak` (long forms)."""

import os
import shutil
import signal
from pathlib import Path

import pytest

TEMPLATES = Path(os.environ.get("SPACE_TEST_TEMPLATES", "/var/cache/space/templates"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def templates_dir() -> Path:
    """The shared directory with the built `base`; read-only by agreement."""
    if not (TEMPLATES / "names/base/latest").exists():
        pytest.skip(f"no base template in {TEMPLATES}; ./test builds it")
    return TEMPLATES


def pytest_configure() -> None:
    """Undo what nohup or a shell's background job ignores: the programs under test inherit it."""
    usual = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    for number, handler in usual.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, with the reason; ./test makes sure that nothing is missing."""
    reason = _why_not_root()
    if reason:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_not_root() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in ("runsc", "ip", "nft", "mke2fs") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}; ./test installs them" if missing else None
