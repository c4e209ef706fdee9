"""The examples in README.md and the guides, run as they stand against a server of their own."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.instance import Instance

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Blocks that install or name things that only a person has.
NOT_RUN = ("git clone", "./quickstart", "./test", "ID")

pytestmark = pytest.mark.root


def blocks(name: str) -> list[tuple[str, str]]:
    found = BLOCK.findall((ROOT / name).read_text())
    return [(language, text) for language, text in found if not any(word in text for word in NOT_RUN)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, templates_dir: Path) -> Iterator[Instance]:
    made = Instance(tmp_path_factory.mktemp("documents") / "data", templates_dir)
    try:
        made.up()
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md", "docs/guide/lifecycle.md"])
def test_examples_run(document: str, server: Instance, tmp_path: Path) -> None:
    cli = json.loads((server.data_dir / "cli.json").read_text())
    environment = {
        **server.environment,
        "PATH": f"{Path(sys.executable).parent}:{server.environment['PATH']}",
        "SPACE_API_URL": cli["api_url"],
        "SPACE_API_TOKEN": cli["token"],
    }
    examples = blocks(document)
    assert examples
    for language, text in examples:
        here = text.replace("/var/lib/space/", f"{server.data_dir}/").replace("http://127.0.0.1:8470", cli["api_url"])
        command = [sys.executable, "-c", here] if language == "python" else ["bash", "-eu", "-c", here]
        ran = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        if "exit 7" not in text:
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        if "print(6" in text:
            assert "42" in ran.stdout
