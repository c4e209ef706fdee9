"""From the core's dataclasses to the wire: dictionaries for orjson."""

import base64
from collections.abc import Mapping
from typing import Any

from space.control.steps import STEPS
from space.core.command import Process
from space.core.errors import CapacityUnavailable, DeadlineExceeded, LimitExceeded, SpaceError, Unavailable
from space.core.event import AuditEntry, Event
from space.core.file import FileInfo
from space.core.operation import Operation, Status
from space.core.sandbox import Resources, Sandbox
from space.core.snapshot import Snapshot

RETRYABLE = frozenset(
    error.code for error in (LimitExceeded, CapacityUnavailable, Unavailable, DeadlineExceeded)
)  #: what a failed operation may say of which trying again may help

COUNTED = ("bytes_read", "bytes_new", "bytes_uploaded", "checkpoint_ms")  #: of an operation's progress

DENY_EVERYTHING: Mapping[str, Any] = {
    "version": 1,
    "default_action": "deny",
    "allow": [],
    "deny": [],
    "tls_interception": {"enabled": False, "exempt": []},
    "credential_rules": [],
    "limits": {"connections": 512, "egress_mib": None},
}


def sandbox(row: Sandbox) -> dict[str, Any]:
    """Show a sandbox."""
    life = row.auto_lifecycle
    return {
        "id": row.id,
        "state": row.shown_state,
        "template": {"name": row.template, "digest": row.template_digest},
        "runtime": row.runtime,
        "resources": resources(row.resources),
        "env_keys": sorted(row.env),
        "metadata": dict(row.metadata),
        "network_policy": DENY_EVERYTHING,
        "egress_profile": None,
        "auto_lifecycle": {
            "idle_seconds": life.idle_seconds,
            "on_idle": life.on_idle,
            "max_lifetime_seconds": life.max_lifetime_seconds,
            "wake_on_request": life.wake_on_request,
        },
        "secure_ports": row.secure_ports,
        "node_id": row.node_id,
        "generation": row.generation,
        "operation_id": row.held_by,
        "reason": row.reason,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "last_active_at": row.last_active_at,
        "expires_at": row.expires_at,
        "ports_domain": None,
        "restorable": row.restorable,
        "snapshot_id": row.snapshot_id,
    }


def resources(row: Resources) -> dict[str, int]:
    """Show what a machine may use."""
    return {"vcpus": row.vcpus, "memory_mib": row.memory_mib, "disk_mib": row.disk_mib}


def operation(row: Operation) -> dict[str, Any]:
    """Show an operation."""
    return {
        "id": row.id,
        "kind": row.kind,
        "sandbox_id": row.sandbox_id,
        "snapshot_id": row.snapshot_id,
        "status": row.status,
        "step": _step(row),
        "progress": _progress(row),
        "error": row.error and {**row.error, "retryable": row.error.get("code") in RETRYABLE},
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
    }


def _step(row: Operation) -> str | None:
    """Name the step after the one that was finished last: under way, or where it failed."""
    if row.status not in (Status.RUNNING, Status.FAILED):
        return None
    names = _steps(row)
    done = _steps_done(row, names)
    return names[done] if done < len(names) else None


def _progress(row: Operation) -> dict[str, Any]:
    names = _steps(row)
    counted = {name: row.progress.get(name) for name in COUNTED}
    return {"step_count": len(names), "steps_done": _steps_done(row, names), **counted}


def _steps(row: Operation) -> list[str]:
    return [step.__name__ for step in STEPS.get(row.kind, ())]


def _steps_done(row: Operation, names: list[str]) -> int:
    if row.status is Status.SUCCEEDED:
        return len(names)
    return names.index(row.step) + 1 if row.step in names else 0


def snapshot(row: Snapshot) -> dict[str, Any]:
    """Show a snapshot."""
    return {
        "id": row.id,
        "name": row.name,
        "sandbox_id": row.sandbox_id,
        "state": row.state,
        "purpose": row.purpose,
        "runtime": row.runtime,
        "template": {"name": row.template, "digest": row.template_digest},
        "resources": resources(row.resources),
        "bytes_read": row.bytes_read,
        "bytes_new": row.bytes_new,
        "bytes_uploaded": row.bytes_uploaded,
        "created_at": row.created_at,
        "ready_at": row.ready_at,
    }


def failure(error: SpaceError) -> dict[str, Any]:
    """Show an error that is part of a success: what became of one of several things."""
    return {
        "code": error.code,
        "message": error.message,
        "details": dict(error.details),
        "retryable": error.retryable,
    }


def process(row: Process) -> dict[str, Any]:
    """Show a process."""
    return {
        "id": row.id,
        "session_id": row.session_id,
        "sandbox_id": row.sandbox_id,
        "os_pid": row.os_pid,
        "argv": row.spec.argv,
        "state": row.state,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "reason": row.reason,
        "stdout_bytes": row.stdout_bytes,
        "stderr_bytes": row.stderr_bytes,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "exited_at": row.exited_at,
    }


def event(row: Event) -> dict[str, Any]:
    """Show an entry of a timeline."""
    return {"seq": row.seq, "type": row.type, "operation_id": row.operation_id, "data": dict(row.data), "at": row.at}


def file(info: FileInfo) -> dict[str, Any]:
    """Show what is at a path."""
    return {
        "path": info.path,
        "type": info.type,
        "size": info.size,
        "mode": f"{info.mode & 0o7777:04o}",
        "user": info.user,
        "group": info.group,
        "modified_at": info.modified_at,
        "target": info.target,
        "etag": info.etag,
    }


def audit_entry(row: AuditEntry) -> dict[str, Any]:
    """Show an entry of the audit log."""
    return {
        "seq": row.seq,
        "project_id": row.project_id,
        "principal": row.principal,
        "action": row.action,
        "target": row.target,
        "outcome": row.outcome,
        "request_id": row.request_id,
        "address": row.address,
        "details": dict(row.details),
        "at": row.at,
    }


def output(data: bytes, encoding: str) -> str:
    """Write output as a JSON string: exactly, or readable."""
    if encoding == "base64":
        return base64.b64encode(data).decode("ascii")
    return data.decode("utf-8", errors="replace")
