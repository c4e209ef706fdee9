"""The lifecycle from the command line, in this process, against a scripted server."""

import json
import sys
from collections.abc import Iterator

import pytest
from tests.sdk.scripted_server import SANDBOX, SNAPSHOT, TOKEN, Script, error, sandbox, serving

from space.cli.entry import enter
from space.cli.progress import Progress
from space.sdk import Operation

pytestmark = pytest.mark.live

OTHER = "sbx" + "1" * 26
SUCCEEDED = {"id": "ops" + "1" * 26, "kind": "create", "status": "succeeded"}
FULL = {"code": "rate_limited", "message": "the project may hold 5 sandboxes", "retryable": True, "details": {}}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture(autouse=True)
def _server(script: Script, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(script) as server:
        monkeypatch.setenv("SPACE_API_URL", server.url)
        monkeypatch.setenv("SPACE_API_TOKEN", TOKEN)
        yield


@pytest.mark.parametrize("kind", ["pause", "suspend", "wake", "recover"])
def test_several_are_changed_at_once_and_their_ids_printed(
    kind: str, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(["sandbox", kind, SANDBOX, OTHER]) == 0
    assert capsys.readouterr().out.split() == [SANDBOX, OTHER]
    asked = [path for _, path, _, _ in script.requests]
    assert asked[:2] == [f"/v1/sandboxes/{SANDBOX}/{kind}", f"/v1/sandboxes/{OTHER}/{kind}"]


def test_a_failure_of_one_does_not_keep_the_others(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.failures = [error("failed_precondition", 409)]
    assert enter(["sandbox", "suspend", SANDBOX, OTHER]) == 1
    out, err = capsys.readouterr()
    assert out.split() == [OTHER]
    assert "this is failed_precondition" in err


def test_an_operation_that_fails_is_a_failure(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.operation_polls = 1
    script.operation_error = {"code": "insufficient_storage", "message": "the disk is full"}
    assert enter(["sandbox", "suspend", SANDBOX]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "the disk is full" in err


def test_operations_are_shown_as_json(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["sandbox", "suspend", SANDBOX, "-o", "json"]) == 0
    (operation,) = json.loads(capsys.readouterr().out)["operations"]
    assert (operation["kind"], operation["status"]) == ("suspend", "succeeded")


def test_without_waiting_it_returns_at_once(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.operation_polls = 99
    assert enter(["sandbox", "suspend", "--no-wait", SANDBOX]) == 0
    assert len(script.requests) == 1


def test_a_slow_operation_is_told_of_on_stderr(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.operation_polls = 3
    assert enter(["sandbox", "suspend", SANDBOX]) == 0
    out, err = capsys.readouterr()
    assert out == SANDBOX + "\n"
    assert err.count("upload snapshot (2 of 3): 3.0 MiB read") == 1


def test_on_a_terminal_one_line_is_written_over_and_cleared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress()
    body = {"id": "ops1", "kind": "suspend", "sandbox_id": "sbx1", "status": "running", "step": "upload_snapshot"}
    progress(Operation.parse(body | {"progress": {"step_count": 3, "steps_done": 2, "bytes_uploaded": 1 << 20}}))
    progress(Operation.parse(body | {"status": "succeeded"}))
    progress.clear()
    shown = capsys.readouterr().err
    assert shown.startswith("\rsbx1 suspend: upload snapshot (3 of 3): 1.0 MiB uploaded")
    assert shown.endswith(" \r")
    assert "\n" not in shown


def test_a_fork_prints_its_children_and_tells_of_those_that_are_missing(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.children = [{"sandbox": sandbox("running", 1), "operation": SUCCEEDED}, {"error": FULL}]
    assert enter(["sandbox", "fork", "-n", "2", "-m", "try=1", SANDBOX]) == 1
    out, err = capsys.readouterr()
    assert out == SANDBOX[:-1] + "1\n"
    assert "may hold 5 sandboxes" in err
    (body,) = [body for _, path, _, body in script.requests if path.endswith("/fork")]
    assert json.loads(body) == {"count": 2, "metadata": {"try": "1"}}


def test_a_fork_as_json_has_an_entry_for_each_child(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.children = [{"sandbox": sandbox("running", 1), "operation": SUCCEEDED}, {"error": FULL}]
    assert enter(["sandbox", "fork", "-n", "2", "-o", "json", SANDBOX]) == 1
    first, second = json.loads(capsys.readouterr().out)["children"]
    assert (first["source"], first["sandbox"]["state"]) == (SANDBOX, "running")
    assert second["error"]["code"] == "rate_limited"


def test_a_snapshot_prints_its_id_and_is_found_and_deleted(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["sandbox", "snapshot", "--name", "trained", SANDBOX]) == 0
    assert capsys.readouterr().out == SNAPSHOT + "\n"
    assert enter(["snapshot", "list", "--limit", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[1:6] for row in rows] == [["trained", SANDBOX, "base", "3.0", "1.0"]] * 2
    assert enter(["snapshot", "get", SNAPSHOT, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "ready"
    assert enter(["snapshot", "delete", SNAPSHOT]) == 0
    assert capsys.readouterr().out == SNAPSHOT + "\n"


def test_extending_says_until_when(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(["sandbox", "extend", "--for", "2h", SANDBOX]) == 0
    assert capsys.readouterr().out == f"{SANDBOX}\t2026-01-01T02:00:00+00:00\n"
    assert json.loads(script.requests[-1][3]) == {"seconds": 7200}


def test_creating_takes_the_automatic_lifecycle(script: Script) -> None:
    options = ["--idle", "10m", "--on-idle", "pause", "--wake-on-request", "--lifetime", "3600"]
    assert enter(["sandbox", "create", "-T", SNAPSHOT, *options]) == 0
    body = json.loads(script.requests[0][3])
    assert body["template"] == SNAPSHOT
    assert body["auto_lifecycle"] == {
        "idle_seconds": 600, "on_idle": "pause", "wake_on_request": True, "max_lifetime_seconds": 3600,
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["sandbox", "suspend"],
        ["sandbox", "extend", SANDBOX],
        ["sandbox", "extend", "--for", "soon", SANDBOX],
        ["sandbox", "fork", "-n", "101", SANDBOX],
        ["sandbox", "create", "--idle", "10"],
    ],
)
def test_wrong_use_is_code_2(arguments: list[str], script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert enter(arguments) == 2
    assert script.requests == []
