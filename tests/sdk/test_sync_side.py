import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_synchronous_side_is_what_the_asynchronous_one_makes() -> None:
    command = [sys.executable, ROOT / "scripts/generate_sync_sdk.py", "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_sdk_imports_nothing_of_the_server() -> None:
    program = (
        "import sys, space.sdk; "
        "print(*sorted(n for n in sys.modules if n.startswith('space.') and not n.startswith('space.sdk')), "
        "*(n for n in ('pydantic', 'fastapi', 'sqlalchemy', 'uvicorn') if n in sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert result.stdout.strip() == ""
