"""Values that the examples of the OpenAPI document are made of."""

from typing import Any, Literal

from space.control.steps import STEPS
from space.core.lifecycle import Kind
from space.server.v1.render import DENY_EVERYTHING
from space.server.v1.schemas.shared import AT, LATER, NODE, OPERATION, PROCESS, PROJECT, SANDBOX, SESSION, SNAPSHOT

DIGEST = "sha256:" + "3f1c9a77d0b2e845" * 4

SANDBOX_RUNNING: dict[str, Any] = {
    "id": SANDBOX,
    "state": "running",
    "template": {"name": "base", "digest": DIGEST},
    "runtime": "gvisor",
    "resources": {"vcpus": 1, "memory_mib": 512, "disk_mib": 2048},
    "env_keys": ["API_BASE"],
    "metadata": {"task": "42"},
    "network_policy": dict(DENY_EVERYTHING),
    "egress_profile": None,
    "auto_lifecycle": {
        "idle_seconds": 21_600,
        "on_idle": "suspend",
        "max_lifetime_seconds": None,
        "wake_on_request": False,
    },
    "secure_ports": True,
    "node_id": NODE,
    "generation": 1,
    "operation_id": None,
    "reason": None,
    "created_at": AT,
    "started_at": LATER,
    "last_active_at": LATER,
    "expires_at": None,
    "ports_domain": None,
    "restorable": False,
    "snapshot_id": None,
}
SANDBOX_CREATING = SANDBOX_RUNNING | {
    "state": "creating",
    "node_id": None,
    "operation_id": OPERATION,
    "started_at": None,
    "last_active_at": AT,
}
SANDBOX_FAILED = SANDBOX_RUNNING | {"state": "failed", "reason": "oom", "restorable": True, "snapshot_id": SNAPSHOT}
SANDBOX_SUSPENDED = SANDBOX_RUNNING | {
    "state": "suspended",
    "node_id": None,
    "restorable": True,
    "snapshot_id": SNAPSHOT,
}

OPERATION_RUNNING: dict[str, Any] = {
    "id": OPERATION,
    "kind": "create",
    "sandbox_id": SANDBOX,
    "snapshot_id": None,
    "status": "running",
    "step": "start_machine",
    "progress": {
        "step_count": 1,
        "steps_done": 0,
        "bytes_read": None,
        "bytes_new": None,
        "bytes_uploaded": None,
        "checkpoint_ms": None,
    },
    "error": None,
    "created_at": AT,
    "started_at": AT,
    "finished_at": None,
}
OPERATION_QUEUED = OPERATION_RUNNING | {"status": "queued", "step": None, "started_at": None}
OPERATION_SUCCEEDED = OPERATION_RUNNING | {
    "status": "succeeded",
    "step": None,
    "progress": OPERATION_RUNNING["progress"] | {"steps_done": 1},
    "finished_at": LATER,
}
OPERATION_FAILED = OPERATION_RUNNING | {
    "status": "failed",
    "finished_at": LATER,
    "error": {"code": "capacity_unavailable", "message": "no node has 512 MiB of memory free", "retryable": True},
}
OPERATION_DELETE = OPERATION_QUEUED | {"kind": "delete"}

_SAVES = (Kind.SUSPEND, Kind.SNAPSHOT, Kind.FORK)
_UNAVAILABLE = {"code": "service_unavailable", "retryable": True}
_NO_STORE = _UNAVAILABLE | {"message": "the object store does not answer; try again"}
_FAILURES: dict[Kind, dict[str, Any]] = {
    Kind.WAKE: _NO_STORE,
    Kind.RECOVER: _NO_STORE,
    Kind.PAUSE: _UNAVAILABLE | {"message": "the sandbox does not answer; try again"},
}
_NO_ROOM = {
    "code": "insufficient_storage",
    "message": "the disk for snapshots is full; the sandbox goes on",
    "retryable": False,
}


def operation(kind: Kind, status: Literal["running", "succeeded", "failed"]) -> dict[str, Any]:
    """Show an operation of a kind that has steps, somewhere in the middle or at its end."""
    names = [step.__name__ for step in STEPS.get(kind, ())]
    done = len(names) if status == "succeeded" else len(names) // 2
    counted = {"bytes_read": 18_087_936, "bytes_new": 1_478_656, "bytes_uploaded": None, "checkpoint_ms": 84}
    if status == "succeeded":
        counted["bytes_uploaded"] = 362_100
    return OPERATION_RUNNING | {
        "kind": str(kind),
        "snapshot_id": None if kind is Kind.PAUSE else SNAPSHOT,
        "status": status,
        "step": names[done] if done < len(names) else None,
        "progress": OPERATION_RUNNING["progress"]
        | {"step_count": len(names), "steps_done": done}
        | (counted if kind in _SAVES else {}),
        "error": _FAILURES.get(kind, _NO_ROOM) if status == "failed" else None,
        "finished_at": None if status == "running" else LATER,
    }


SNAPSHOT_READY: dict[str, Any] = {
    "id": SNAPSHOT,
    "name": "trained",
    "sandbox_id": SANDBOX,
    "state": "ready",
    "purpose": "named",
    "runtime": "gvisor",
    "template": {"name": "base", "digest": DIGEST},
    "resources": {"vcpus": 1, "memory_mib": 512, "disk_mib": 2048},
    "bytes_read": 18_087_936,
    "bytes_new": 1_478_656,
    "bytes_uploaded": 362_100,
    "created_at": AT,
    "ready_at": LATER,
}
SNAPSHOT_UPLOADING = SNAPSHOT_READY | {
    "state": "uploading",
    "bytes_read": 0,
    "bytes_new": 0,
    "bytes_uploaded": 0,
    "ready_at": None,
}

PROCESS_CREATED: dict[str, Any] = {
    "id": PROCESS,
    "session_id": SESSION,
    "sandbox_id": SANDBOX,
    "os_pid": None,
    "argv": ["python3", "-c", "print(6*7)"],
    "state": "created",
    "exit_code": None,
    "signal": None,
    "reason": None,
    "stdout_bytes": 0,
    "stderr_bytes": 0,
    "created_at": AT,
    "started_at": None,
    "exited_at": None,
}
PROCESS_RUNNING = PROCESS_CREATED | {"state": "running", "os_pid": 17, "started_at": AT, "stdout_bytes": 3}
PROCESS_EXITED = PROCESS_RUNNING | {"state": "exited", "exit_code": 0, "exited_at": LATER}
PROCESS_KILLED = PROCESS_RUNNING | {"state": "exited", "signal": "SIGKILL", "reason": "killed", "exited_at": LATER}

SESSION_CREATED: dict[str, Any] = {
    "id": SESSION,
    "events_url": f"http://127.0.0.1:8471/v1/sessions/{SESSION}/events",
    "token": "sps_Zm9yIGV4YW1wbGUgb25seSwgbm90IGEgc2VjcmV0",
    "token_expires_at": "2026-12-01T09:35:00.000000Z",
}
EXEC_RESULT: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "reason": None,
    "stdout": "42\n",
    "stderr": "",
    "encoding": "utf-8",
    "stdout_truncated": False,
    "stderr_truncated": False,
    "stdout_bytes": 3,
    "stderr_bytes": 0,
    "session_id": SESSION,
    "process_id": PROCESS,
    "duration_ms": 41,
}
EXEC_FAILED = EXEC_RESULT | {
    "exit_code": 7,
    "stdout": "",
    "stderr": "no such table\n",
    "stdout_bytes": 0,
    "stderr_bytes": 14,
}
EXEC_TIMED_OUT = EXEC_RESULT | {"exit_code": None, "signal": "SIGKILL", "reason": "timeout", "duration_ms": 5003}

EVENT: dict[str, Any] = {
    "seq": 2,
    "type": "sandbox.started",
    "operation_id": OPERATION,
    "data": {"generation": 1},
    "at": LATER,
}
FILE: dict[str, Any] = {
    "path": "/home/user/data.csv",
    "type": "file",
    "size": 1024,
    "mode": "0644",
    "user": "user",
    "group": "user",
    "modified_at": AT,
    "target": None,
    "etag": "18c-65f0a1b2-400",
}
DIRECTORY = FILE | {"path": "/home/user/results", "type": "directory", "size": 4096, "mode": "0755"}
PROJECT_SHOWN: dict[str, Any] = {
    "id": PROJECT,
    "name": "research",
    "quotas": {
        "max_sandboxes": 50,
        "max_vcpus": 64,
        "max_memory_mib": 65_536,
        "max_disk_mib": None,
        "max_creates_per_minute": 120,
    },
    "created_at": AT,
}


def page(*items: Any, cursor: str | None = None) -> dict[str, Any]:
    """Show items as a list answers them."""
    return {"items": list(items), "next_cursor": cursor}
