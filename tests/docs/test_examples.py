"""The examples in README.md and docs/getting-started.md, run as they stand against a server of their own."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Blocks that install or name things that only a person has.
NOT_RUN = ("git clone", "./quickstart", "./test", "ID")

pytestmark = pytest.mark.root


def blocks(name: str) -> list[tuple[str, str]]:
    found = BLOCK.findall((ROOT / name).read_text())
    return [(language, text) for language, text in found if not any(word in text for word in NOT_RUN)]


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md"])
def test_examples_run(document: str, place: Any, tmp_path: Path) -> None:
    assert place.space("up", "--detach").returncode == 0
    cli = json.loads((place.data_dir / "cli.json").read_text())
    environment = {
        **place.environment,
        "PATH": f"{Path(sys.executable).parent}:{place.environment['PATH']}",
        "SPACE_API_URL": cli["api_url"],
        "SPACE_API_TOKEN": cli["token"],
    }
    examples = blocks(document)
    assert len(examples) >= 2
    for language, text in examples:
        here = text.replace("/var/lib/space/", f"{place.data_dir}/").replace("http://127.0.0.1:8470", cli["api_url"])
        command = [sys.executable, "-c", here] if language == "python" else ["bash", "-eu", "-c", here]
        ran = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        if "exit 7" not in text:
            assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        if "print(6" in text:
            assert "42" in ran.stdout
