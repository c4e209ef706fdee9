"""Make the synchronous side of the SDK, `src/space/sdk/_sync`, out of the asynchronous one.

Both sides have the same logic, so it is written once, as coroutines, and the other is derived by dropping the words
that make them so.  `--check` changes nothing and fails if the files differ: a test runs it.
"""

import re
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent / "src/space/sdk"
BY_HAND = {"__init__.py", "pieces.py"}
HEADER = "# Generated from ../_async/{name} by scripts/generate_sync_sdk.py: change it there.\n"

DROPPED = ("async ", "await ")
RENAMED = {
    r"_async\b": "_sync",
    r"\bAsyncGenerator\[(\w+), None\]": r"Generator[\1, None, None]",
    r"\bAsync(Client|Sandbox|Lifecycle|Snapshots|Command|Events|Files|Transport|BaseTransport|HTTPTransport)\b": r"\1",
    r"\bAsync(Iterator|Iterable|Generator)\b": r"\1",
    r"\b__a(enter|exit|iter|next)__": r"__\1__",
    r"\bStopAsyncIteration\b": "StopIteration",
    r"\basynccontextmanager\b": "contextmanager",
    r"\baclosing\b": "closing",
    r"\ba(close|read|iter_raw)\b": r"\1",
    r"\banext\(": "next(",
    r"\banyio\.sleep\b": "time.sleep",
    r"^import anyio\n": "",
}


def synchronous(source: str, name: str) -> str:
    """Return the text of the synchronous file."""
    for word in DROPPED:
        source = source.replace(word, "")
    for pattern, replacement in RENAMED.items():
        source = re.sub(pattern, replacement, source, flags=re.MULTILINE)
    if "time.sleep" in source and "import time\n" not in source:
        source = source.replace("\nimport ", "\nimport time\nimport ", 1)
    return HEADER.format(name=name) + source


def formatted(source: str, path: Path) -> str:
    """Return the text as ruff would have it: lines became shorter."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    for arguments in (
        ["check", "--select=I,F401,UP028", "--fix-only", "--unsafe-fixes", "--quiet"],
        ["format", "--quiet"],
    ):
        command = [ruff, *arguments, "--stdin-filename", str(path), "-"]
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return source


def main() -> int:
    """Write the files, or with `--check` say which differ."""
    is_check = "--check" in sys.argv[1:]
    differing = []
    for path in sorted((SDK / "_async").glob("*.py")):
        if path.name in BY_HAND:
            continue
        target = SDK / "_sync" / path.name
        text = formatted(synchronous(path.read_text(), path.name), target)
        if target.exists() and target.read_text() == text:
            continue
        differing.append(path.name)
        if not is_check:
            target.write_text(text)
    if is_check and differing:
        print(f"out of date: {', '.join(differing)}; run scripts/generate_sync_sdk.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
