"""The only source of wall-clock time. Durations use time.monotonic(); leases and deadlines the database's clock."""

from datetime import UTC, datetime


def now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


def iso_ms(moment: datetime) -> str:
    """`2026-01-02T03:04:05.678Z`: the form of every time that leaves the portal (DESIGN 5)."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
