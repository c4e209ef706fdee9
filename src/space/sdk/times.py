"""Times on the wire: RFC 3339 in UTC with `Z`."""

from datetime import datetime


def parse_time(text: str | None) -> datetime | None:
    """Read a time of the wire; it is aware."""
    return None if text is None else datetime.fromisoformat(text)  # 3.11 reads `Z` and any fraction


def format_time(moment: datetime) -> str:
    """Write an aware time for the wire."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone is ambiguous; use datetime.now(UTC) or the like")
    return moment.isoformat().replace("+00:00", "Z")
