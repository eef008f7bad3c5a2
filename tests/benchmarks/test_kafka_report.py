import re
from pathlib import Path

import pytest

from benchmarks import kafka_report, report
from benchmarks.bench import Bench
from benchmarks.harness import ROOT
from benchmarks.kafka_report import BEGIN, END, beside_table, kafka_targets_table, readme_table

pytestmark = pytest.mark.system


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(directory=tmp_path, quick=False, versions={"Apache Kafka": "4.3.1", "Java": "17"})
    for side, rate, cpu in (("kafka", 200.0, 4.0), ("moldau", 320.0, 3.0)):
        metric = f"beside.1.never.produce.1024.16KB.{side}"
        found.record(f"{metric}.mb_s", rate)
        found.record(f"{metric}.cpu_us_msg", cpu)
        metric = f"beside.3.always.lone.{side}"
        found.record(f"{metric}.p50_us", rate)
        found.record(f"{metric}.p99_us", 2 * rate)
        found.record(f"{metric}.cpu_us_msg", cpu)
    found.record("beside.1.never.produce.1024.16KB.moldau.ratio", 1.6)
    found.record("beside.1.never.produce.1024.16KB.moldau.cpu_ratio", 0.75)
    for name in ("p50", "p99"):
        found.record(f"beside.3.always.lone.moldau.{name}_ratio", 1.6)
    found.record("beside.3.always.lone.moldau.cpu_ratio", 0.75)
    return found


@pytest.fixture
def pages(tmp_path: Path) -> tuple[Path, Path]:
    page, readme = tmp_path / "performance.md", tmp_path / "README.md"
    general = f"{report.BEGIN}\ngeneral\n{report.END}"
    page.write_text(f"before\n{general}\n{BEGIN}\nold figures\n{END}\nafter\n")
    readme.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    return page, readme


def test_rows_have_the_figures_of_both_and_ratios(bench: Bench) -> None:
    table = beside_table(bench)
    assert table.columns[1:4] == ["Apache Kafka", "CPU µs/msg", "Moldau"]
    assert table.rows == [
        [
            "one broker, flush=never: produce 1 KiB, 16 KB batches",
            *("200 MB/s", "4.00", "320 MB/s", "3.00", "1.60", "0.75", "–"),
        ],
        [
            "three brokers, flush=always: 100 B, one at a time",
            *("200 / 400 µs", "4.00", "320 / 640 µs", "3.00", "–", "0.75", "1.60 / 1.60"),
        ],
    ]


def test_what_is_compiled_has_columns_of_its_own_and_targets_where_it_was_measured(
    bench: Bench,
) -> None:
    metric = "beside.1.never.produce.1024.16KB.compiled"
    for name, value in (("mb_s", 480.0), ("cpu_us_msg", 2.0), ("ratio", 2.4), ("cpu_ratio", 0.5)):
        bench.record(f"{metric}.{name}", value)
    table = readme_table(bench)
    assert table.columns[2:] == [
        *("Moldau", "ratio", "CPU per message"),
        *("Moldau, compiled", "ratio", "CPU per message"),
    ]
    assert table.rows[0][2:] == ["320 MB/s", "1.60 ×", "0.75 ×", "480 MB/s", "2.40 ×", "0.50 ×"]
    judged = [(row[0], row[2]) for row in kafka_targets_table(bench).rows]
    assert judged[-1] == (
        "beside Apache Kafka, compiled: one broker, flush=never: produce 1 KiB, 16 KB batches",
        "2.40 ×",
    )


def test_targets_are_judged_like_others(bench: Bench) -> None:
    verdicts = [(row[1], row[2], row[-1]) for row in kafka_targets_table(bench).rows]
    assert verdicts == [
        ("≥ 1.5 ×", "1.60 ×", "met"),
        ("≤ 0.7 ×", "1.60 ×", "MISSED"),
        ("≤ 0.5 ×", "1.60 ×", "MISSED"),
    ]
    assert report.targets_table(bench).rows == []


def test_a_transaction_is_a_hundred_messages(bench: Bench) -> None:
    for side in ("kafka", "moldau"):
        metric = f"beside.1.never.transactions.8.{side}"
        bench.record(f"{metric}.msg_s", 61_500)
        bench.record(f"{metric}.cpu_us_msg", 1.0)
    assert beside_table(bench).rows[1][1] == "615 transactions/s"


def test_writing_leaves_what_was_not_measured(bench: Bench, pages: tuple[Path, Path]) -> None:
    page, readme = pages
    kafka_report.write_kafka_docs(bench, "python -m benchmarks --only kafka", [], page, readme)
    text = page.read_text()
    assert f"{report.BEGIN}\ngeneral\n{report.END}" in text
    assert "old figures" not in text
    assert "| 320 MB/s |" in text
    assert "- Apache Kafka: 4.3.1" in text
    assert "- Python: 3." in text
    assert readme.read_text().count("| 320 MB/s |") == 1


def test_what_was_measured_cold_is_not_written(
    bench: Bench, pages: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = [path.read_text() for path in pages]
    bench.quick = True
    kafka_report.write_kafka_docs(bench, "x", [], *pages)
    assert [path.read_text() for path in pages] == before
    assert "not written: what --quick measures" in capsys.readouterr().err


def test_a_report_says_how_often_kafka_was_not_steady(bench: Bench) -> None:
    assert kafka_report.warmth(bench) == []
    for steady in (1.0, 0.0, 1.0):
        bench.record("beside.steady", steady)
    assert kafka_report.warmth(bench)[0].startswith(
        "Kafka was warmed up before each of 3 loads; 1 of them"
    )
    bench.quick = True
    assert "cold" in kafka_report.warmth(bench)[0]


def test_a_run_without_kafka_leaves_both_pages(tmp_path: Path, pages: tuple[Path, Path]) -> None:
    before = [path.read_text() for path in pages]
    without = Bench(directory=tmp_path, quick=True)
    kafka_report.write_kafka_docs(without, "x", [], *pages)
    assert [path.read_text() for path in pages] == before


def test_the_short_table_has_what_the_long_one_has(bench: Bench) -> None:
    rows = [row[1:3] for row in readme_table(bench).rows]
    assert rows == [["200 MB/s", "320 MB/s"]]


def between(path: Path) -> str:
    return path.read_text().split(BEGIN, 1)[1].split(END, 1)[0]


def test_the_readme_has_the_figures_of_the_page() -> None:
    page = between(ROOT / "docs" / "performance.md")
    readme = between(ROOT / "README.md")
    figures = re.findall(r"\| ([\d,.]+(?: / [\d,.]+)* (?:MB/s|µs|transactions/s))", readme)
    assert [figure for figure in figures if figure not in page] == []
    dates = [re.findall(r"on (20\d\d-\d\d-\d\d)", text)[:1] for text in (page, readme)]
    assert dates[0] == dates[1]
