"""Leases: every way to say an end, the earlier of two, clear refusals, and no wall clock after the first reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.lease import Moment, length_text, parse_end, parse_length, resolve_lease

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
NOW = Moment(monotonic_s=1000.0, wall=NOON, zone=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14400),
        ("1h30m", 5400),
        ("2.5h", 9000),
        ("90min", 5400),
        ("45s", 45),
        ("1d2h3m4s", 93784),
        ("0:01:30", 90),
        ("04:00:00", 14400),
        ("1-12:00:00", 129600),
    ],
)
def test_a_length_is_read(text: str, seconds: float) -> None:
    """With units, or as Slurm writes it."""
    assert parse_length(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "4", "-4h", "4 hours", "h", "nan", "infh", "1h-30m", "0h", "0s", "9999d", "1:75:00", "4h garbage"]
)
def test_a_length_that_cannot_be_meant_is_refused(text: str) -> None:
    """Unparsable, negative, zero, without a unit, absurd: found and way out are named."""
    with pytest.raises(RequestError, match="way out: write it like") as caught:
        parse_length(text)
    assert repr(text) in caught.value.found


def test_a_length_counts_from_when_the_command_began() -> None:
    """Seconds of import are part of the lease."""
    lease = resolve_lease(NOW, began_s=990.0, length="60s")
    assert (lease.end_s, lease.source) == (1050.0, "--lease 60s")
    assert lease.sources[0].end == NOON + timedelta(seconds=50)
    assert lease.length_s(since_s=990.0) == 60.0


@pytest.mark.parametrize(
    ("text", "hours"),
    [("2026-12-01T18:00", 6), ("2026-12-01 18:00:00", 6), ("2026-12-01T18:00+02:00", 4), ("2026-12-01T18:00Z", 6)],
)
def test_an_end_is_read(text: str, hours: float) -> None:
    """In the machine's time, or with an offset."""
    lease = resolve_lease(NOW, began_s=1000.0, end=text)
    assert lease.end_s == 1000 + 3600 * hours
    assert lease.source == f"--lease-end {text}"


def test_an_end_without_an_offset_is_local_and_knows_summer_time() -> None:
    """18:00 in Berlin is 16:00 UTC in July, whatever the offset of today."""
    assert parse_end("2026-07-01T18:00", BERLIN) == datetime(2026, 7, 1, 16, tzinfo=UTC)
    assert parse_end("2026-12-01T18:00", BERLIN) == datetime(2026, 12, 1, 17, tzinfo=UTC)


def test_an_hour_that_comes_twice_is_the_earlier_one() -> None:
    """When clocks go back, and in the hour that is skipped when they go forward: never later than it may be."""
    assert parse_end("2026-10-25T02:30", BERLIN) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert parse_end("2026-03-29T02:30", BERLIN) == datetime(2026, 3, 29, 0, 30, tzinfo=UTC)


def test_the_machines_zone_is_used_where_none_is_given() -> None:
    """Same instant as the standard library's local time."""
    assert parse_end("2026-12-01T18:00", None) == datetime(2026, 12, 1, 18).astimezone(UTC)


@pytest.mark.parametrize("text", ["", "tomorrow", "18:00", "2026-13-01T18:00", "2026-12-01", "20261201"])
def test_an_end_that_cannot_be_read_is_refused(text: str) -> None:
    """A date alone too: midnight is hardly meant."""
    with pytest.raises(RequestError, match=r"lease end .*allowed: a date and time"):
        parse_end(text, UTC)


@pytest.mark.parametrize("end", ["2026-12-01T11:59", "2026-12-01T12:00", "2025-12-01T18:00"])
def test_a_lease_in_the_past_is_refused(end: str) -> None:
    """With how long ago it ended and what would do."""
    with pytest.raises(RequestError, match=r"ended .* ago.*allowed: an end after 2026-12-01 12:00:00 UTC"):
        resolve_lease(NOW, began_s=1000.0, end=end)


def test_a_length_that_was_used_up_before_the_first_look_is_refused() -> None:
    """Imports took longer than the lease."""
    with pytest.raises(RequestError, match=r"--lease 5s ended 5\.0 s ago"):
        resolve_lease(NOW, began_s=990.0, length="5s")


def test_an_end_years_ahead_is_refused() -> None:
    """A typing error in the year."""
    with pytest.raises(RequestError, match="check the year"):
        resolve_lease(NOW, began_s=1000.0, end="2036-12-01T18:00")


def test_slurm_says_the_end_in_seconds_since_1970_or_through_squeue() -> None:
    """The variable of newer versions goes first; squeue's local time is read where it is unset."""
    epoch = str(int(NOON.timestamp()) + 600)
    assert resolve_lease(NOW, began_s=1000.0, slurm_end_time=epoch).end_s == 1600.0
    assert resolve_lease(NOW, began_s=1000.0, squeue_end="2026-12-01T12:20:00\n").end_s == 2200.0
    both = resolve_lease(NOW, began_s=1000.0, slurm_end_time=epoch, squeue_end="2026-12-01T12:20:00")
    assert [source.name for source in both.sources] == ["SLURM_JOB_END_TIME"]


@pytest.mark.parametrize("text", ["soon", "", "1e99", "99999999999999999999"])
def test_a_slurm_variable_that_is_no_time_is_refused(text: str) -> None:
    """It is not taken for "no lease"."""
    with pytest.raises(RequestError, match=r"SLURM_JOB_END_TIME .*seconds since 1970"):
        resolve_lease(NOW, began_s=1000.0, slurm_end_time=text)


@pytest.mark.parametrize("text", ["N/A", "NONE\n", "Unknown", "UNLIMITED", ""])
def test_a_slurm_job_without_an_end_is_no_source(text: str) -> None:
    """Nothing else was said: unbounded, and it is said to be."""
    lease = resolve_lease(NOW, began_s=1000.0, squeue_end=text)
    assert lease.end_s is None
    assert lease.length_s(since_s=0.0) is None
    assert lease.lines(1000.0) == [
        "lease: unbounded, no end was given (--lease, --lease-end) and no Slurm job was found"
    ]


def test_of_two_sources_the_earlier_end_counts_and_both_are_printed() -> None:
    """A flag of 4 h in a job that ends in 2 h."""
    lease = resolve_lease(NOW, began_s=1000.0, length="4h", squeue_end="2026-12-01T14:00:00")
    assert (lease.end_s, lease.source) == (1000 + 7200, "squeue")
    assert lease.lines(1000.0) == [
        "lease: ends in 2:00:00, at 2026-12-01 14:00:00 UTC, from squeue",
        "lease: --lease 4h says 2026-12-01 16:00:00 UTC, 2:00:00 later: the earlier end counts",
    ]


@given(
    length_s=st.integers(1, 10**6),
    end_in_s=st.integers(1, 10**6),
    imported_s=st.floats(0, 0.9),
)
def test_the_end_is_the_minimum_of_all_sources(length_s: int, end_in_s: int, imported_s: float) -> None:
    """And its wall time is the same instant."""
    end = (NOON + timedelta(seconds=end_in_s)).isoformat()
    lease = resolve_lease(NOW, began_s=1000.0 - imported_s, length=f"{length_s}s", end=end)
    assert lease.end_s == pytest.approx(min(1000 - imported_s + length_s, 1000 + end_in_s), abs=1e-6)
    assert NOW.monotonic_at(lease.sources[0].end) == pytest.approx(lease.end_s, abs=1e-5)


def test_lengths_are_written_like_a_clock() -> None:
    """Below a minute with a decimal."""
    assert [length_text(s) for s in (3.25, 75, 14398, 100_000)] == ["3.2 s", "0:01:15", "3:59:58", "1 d 3:46:40"]
