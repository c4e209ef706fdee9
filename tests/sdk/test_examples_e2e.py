"""The examples of docs/sdk.md, run as they stand against a real server."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$",
    (Path(__file__).parents[2] / "docs/sdk.md").read_text(),
    re.MULTILINE | re.DOTALL,
)

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    made = Instance(tmp_path_factory.mktemp("sdk") / "space", templates_dir)
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_and_leaves_no_sandbox(server: Instance, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]], env=server.environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert server.space("sandbox", "list", "--state", "running").stdout == ""
