"""The other commands, in this process, against a scripted server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sdk.scripted_server import SANDBOX, TOKEN, Script, ScriptedServer, error, journal, serving

import space
from space.cli.durations import parse_duration
from space.cli.entry import enter
from space.cli.output import age
from space.cli.sandbox.cp import parse_place

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> Script:
    return Script(frames=journal([("stdout", b"out\n")], exit_code=3))


@pytest.fixture
def server(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with serving(script) as server:
        monkeypatch.setenv("SPACE_API_URL", server.url)
        monkeypatch.setenv("SPACE_API_TOKEN", TOKEN)
        yield server


@pytest.mark.usefixtures("server")
class TestSandboxes:
    def test_create_prints_the_id(self, script: Script, capsys: pytest.CaptureFixture[str]) -> None:
        assert enter(["sandbox", "create", "-m", "task=42", "-e", "K=V=W", "--memory", "256"]) == 0
        assert capsys.readouterr().out == SANDBOX + "\n"
        body = json.loads(script.requests[0][3])
        assert body["metadata"] == {"task": "42"}
        assert body["env"] == {"K": "V=W"}

    def test_list_is_tab_separated_for_programs_and_json_if_asked(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert enter(["sandbox", "list"]) == 0
        rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert [row[1:4] for row in rows] == [["running", "base", "gvisor"]] * 5
        assert enter(["sandbox", "list", "--limit", "3", "-o", "json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["items"]) == 3

    def test_get_shows_all_that_the_server_says(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert enter(["sandbox", "get", SANDBOX, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["a_field_of_the_future"] == 1

    def test_delete_goes_on_after_a_failure_and_says_so(
        self, script: Script, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script.failures = [error("not_found", 404)]
        assert enter(["sandbox", "delete", "sbxnone", SANDBOX]) == 1
        out, err = capsys.readouterr()
        assert out == SANDBOX + "\n"
        assert "this is not_found" in err

    def test_exec_leaves_with_the_commands_code(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        assert enter(["sandbox", "exec", "--no-stdin", SANDBOX, "--", "sh", "-c", "exit 3"]) == 3
        assert capfdbinary.readouterr().out == b"out\n"

    def test_exec_detached_prints_the_process(self, script: Script, capsys: pytest.CaptureFixture[str]) -> None:
        assert enter(["sandbox", "exec", "-d", SANDBOX, "--", "sleep", "9"]) == 0
        assert capsys.readouterr().out.startswith("prc")
        assert json.loads(script.requests[-1][3])["start"] == "now"
        assert script.attached == 0


def test_version_is_said_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["--version"]) == 0
    assert capsys.readouterr().out == f"space {space.__version__}\n"
    command = [sys.executable, "-X", "importtime", "-m", "space.cli", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert result.stdout == f"space {space.__version__}\n"
    assert not {"typer", "httpx", "rich", "asyncio"} & {
        line.split("|")[-1].strip() for line in result.stderr.splitlines()
    }


def test_a_client_command_imports_no_package_of_the_server() -> None:
    program = (
        "import sys; from space.cli.entry import enter; enter(['sandbox', 'list']);"
        "names = 'fastapi sqlalchemy uvicorn structlog rich.progress httpx._client'.split();"
        "print(*(name for name in names if name in sys.modules))"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "SPACE_API_TOKEN": "x", "SPACE_API_URL": "nonsense://x"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["httpx._client"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch"],
        ["run"],
        ["run", "--timeout", "x", "--", "y"],
        ["sandbox", "create", "-m", "novalue"],
        ["sandbox", "cp", "a"],
        ["sandbox", "cp", "a", "b"],
        ["sandbox", "cp", f"{SANDBOX}:/a", f"{SANDBOX}:/b"],
        ["sandbox", "cp", f"{SANDBOX}:relative", "b"],
        ["token", "create", "x", "-s", "admin", "--expires", "soon"],
    ],
)
def test_wrong_use_is_code_2_and_no_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_a_server_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SPACE_API_URL", "SPACE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPACE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert enter(["sandbox", "list"]) == 2
    assert "space up" in capsys.readouterr().err


def test_status_says_whether_the_server_answers(
    monkeypatch: pytest.MonkeyPatch, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"api_url": server.url, "answers": True, "sandboxes_running": 5}
    monkeypatch.setenv("SPACE_API_URL", "http://127.0.0.1:1")
    assert enter(["status", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["answers"] is False


def test_config_shows_settings_and_names_a_wrong_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPACE_LISTEN", "127.0.0.1:9999")
    assert enter(["config", "-o", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    assert rows["SPACE_LISTEN"] == {"name": "SPACE_LISTEN", "value": "127.0.0.1:9999", "is_set": True}
    monkeypatch.setenv("SPACE_LISTEN", "nonsense")
    assert enter(["config"]) == 2
    assert "SPACE_LISTEN" in capsys.readouterr().err


def test_what_a_guest_wrote_cannot_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from space.cli.output import print_fields, print_table

    print_table(("a",), [["\x1b]0;owned\x07\n"]])
    print_fields({"reason": "\x1b[2J"})
    assert "\x1b" not in capsys.readouterr().out


def test_places_in_sandboxes_are_told_from_local_paths() -> None:
    assert parse_place("sbx01ab:/tmp/x:y") == ("sbx01ab", "/tmp/x:y")
    assert parse_place("./sbx01ab:/x") == (None, "./sbx01ab:/x")
    assert parse_place("C:/x") == (None, "C:/x")
    assert parse_place("-") == (None, "-")


def test_durations_and_ages() -> None:
    assert parse_duration("90s").total_seconds() == 90
    assert parse_duration("30d").days == 30
    assert age(None) == "-"
