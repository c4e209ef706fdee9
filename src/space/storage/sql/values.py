"""How values are kept in columns: times as milliseconds, mappings as JSON text."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def milliseconds(time: datetime) -> int:
    """Return milliseconds since 1970; what is finer is cut off."""
    return int(time.timestamp()) * 1000 + time.microsecond // 1000


def optional_milliseconds(time: datetime | None) -> int | None:
    """Like `milliseconds`; None stays None."""
    return None if time is None else milliseconds(time)


def instant(value: int) -> datetime:
    """Return the time that `milliseconds` gave this value for."""
    return datetime.fromtimestamp(value // 1000, UTC).replace(microsecond=value % 1000 * 1000)


def optional_instant(value: int | None) -> datetime | None:
    """Like `instant`; None stays None."""
    return None if value is None else instant(value)


def to_json(value: Mapping[str, Any]) -> str:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if value else "{}"


def from_json(text: str) -> dict[str, Any]:
    """Read what `to_json` wrote."""
    result: dict[str, Any] = json.loads(text) if text != "{}" else {}
    return result
