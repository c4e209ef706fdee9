"""Values that the examples of the OpenAPI document are made of."""

from typing import Any

from space.server.v1.render import DENY_EVERYTHING
from space.server.v1.schemas.shared import AT, LATER, NODE, OPERATION, PROCESS, PROJECT, SANDBOX, SESSION

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
}
SANDBOX_CREATING = SANDBOX_RUNNING | {
    "state": "creating",
    "node_id": None,
    "operation_id": OPERATION,
    "started_at": None,
    "last_active_at": AT,
}
SANDBOX_FAILED = SANDBOX_RUNNING | {"state": "failed", "reason": "oom"}

OPERATION_RUNNING: dict[str, Any] = {
    "id": OPERATION,
    "kind": "create",
    "sandbox_id": SANDBOX,
    "status": "running",
    "step": "start_machine",
    "progress": None,
    "error": None,
    "created_at": AT,
    "started_at": AT,
    "finished_at": None,
}
OPERATION_SUCCEEDED = OPERATION_RUNNING | {"status": "succeeded", "finished_at": LATER}
OPERATION_FAILED = OPERATION_RUNNING | {
    "status": "failed",
    "finished_at": LATER,
    "error": {"code": "capacity_unavailable", "message": "no node has 512 MiB of memory free"},
}
OPERATION_DELETE = OPERATION_RUNNING | {"kind": "delete", "status": "queued", "step": None, "started_at": None}

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
