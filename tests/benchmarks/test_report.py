from pathlib import Path

import pytest

from benchmarks import report, tables
from benchmarks.bench import Bench
from benchmarks.targets import TARGETS, verdicts

pytestmark = pytest.mark.system


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(directory=tmp_path, quick=True)


def test_a_target_is_judged_by_the_median_of_its_repetitions(bench: Bench) -> None:
    for value in (0.2, 0.8, 0.9):
        bench.record("produce.1024.1MB.rdkafka.ratio", value)
    for value in (30.0, 26.0, 1.0):
        bench.record("small.moldau.cpu_us_msg", value)
    assert [(target.metric, value, met) for target, value, met in verdicts(bench)] == [
        ("produce.1024.1MB.rdkafka.ratio", 0.8, True),
        ("small.moldau.cpu_us_msg", 26.0, False),
    ]


def test_every_target_has_a_metric_of_its_own() -> None:
    metrics = [target.metric for target in TARGETS]
    assert len(set(metrics)) == len(metrics)


def test_the_page_keeps_what_people_wrote_around_the_measured_part(
    bench: Bench, tmp_path: Path
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold figures\n{report.END}\nafter\n")
    bench.record("start.cpu_s", 0.25)
    report.write_docs(bench, "python -m benchmarks --quick", page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old figures" not in text
    assert "| 0.25 s |" in text
    assert "`python -m benchmarks --quick`" in text


def test_a_page_without_markers_is_not_overwritten(bench: Bench, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("written by hand\n")
    bench.record("start.cpu_s", 0.25)
    with pytest.raises(ValueError, match="no markers"):
        report.write_docs(bench, "x", page)
    assert page.read_text() == "written by hand\n"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (1234.5, "1,234"), (45.67, "45.7"), (0.754, "0.75")]
)
def test_numbers_are_shown_with_three_digits(value: float | None, text: str) -> None:
    assert tables.number(value) == text
