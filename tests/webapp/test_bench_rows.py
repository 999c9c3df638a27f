"""What `portal bench` hears of what it started, and makes of its measurements."""

import re
import subprocess
import sys

from webapp.cli.bench.row import Row, spread
from webapp.cli.bench.stage import line_with


def test_a_spread_stays_within_what_was_measured() -> None:
    few = [5.0] * 59 + [79.0]
    assert spread(few)["p50_ms"] == 5.0
    assert 5.0 < spread(few)["p99_ms"] < 79.0
    many = [float(n) for n in range(101)]
    assert spread(many, 50, 95, 99) == {"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0}


def test_a_row_names_what_it_missed() -> None:
    row = Row("abort", {"p50_ms": 8.0, "p99_ms": 51.0, "cpu_s": 9.0}, {"p50_ms": 10.0, "p99_ms": 50.0})
    assert row.missed == ["p99_ms"]


def test_a_line_is_found_behind_others_that_came_with_it() -> None:
    code = "import sys, time; sys.stdout.write('one\\ntwo\\nready at 8\\n'); sys.stdout.flush(); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line_with(process, re.compile(r"\d"), 60) == "ready at 8\n"
        finally:
            process.kill()
