"""What is published of a run: the catalogue, the figures, the page."""

from pathlib import Path

import pytest

from faults import report
from faults.catalogue import BY_BROKERS, THREE_BROKERS, Scenario
from faults.checker import Anomaly
from faults.clients import payload, value_of
from faults.measures import spread, unavailability
from faults.report import BEGIN, END, Played
from faults.run import Result, Run


def nothing(run: Run) -> None:
    """A scenario of these tests, which is never played."""


SCENARIO = Scenario(name="3", title="kill", expected="all there", play=nothing)


def played(**fields: object) -> Played:
    result = Result(**fields)  # type: ignore[arg-type]
    return Played(scenario=SCENARIO, result=result)


def markdown(*all_played: Played) -> str:
    rows = {each.scenario.name: report.row_of(each) for each in all_played}
    return report.markdown([each.scenario for each in all_played], rows)


def test_every_numbered_scenario_is_listed_once_and_in_order() -> None:
    numbers = [scenario.name for scenario in THREE_BROKERS if scenario.name.isdecimal()]
    assert numbers == [str(number) for number in range(1, 26)]
    for scenarios in BY_BROKERS.values():
        names = [scenario.name for scenario in scenarios]
        assert len(names) == len(set(names))


def test_a_scenario_that_cannot_be_played_is_listed_with_the_reason() -> None:
    missing = Played(scenario=SCENARIO, missing="needs root")
    assert "not run: needs root" in report.line(missing)
    assert "| not run: needs root |" in markdown(missing)


def test_a_failed_run_is_reported_with_its_problems() -> None:
    failed = played(problems=["lost write ×3"], proofs=["a", "a"])
    assert failed.status == "FAILED"
    text = report.line(failed)
    assert "problem: lost write ×3" in text
    assert "proof: a (×2)" in text


def test_anomalies_are_counted_in_their_columns() -> None:
    run = played(proofs=["p"], faults=4, unavailable_seconds=[1.0, 2.0, 3.0])
    assert run.result is not None
    run.result.verdict.add(Anomaly.LOST, "x", 2)
    run.result.verdict.add(Anomaly.UNSEEN, "x")
    run.result.verdict.add(Anomaly.DUPLICATE, "x", 5)
    run.result.verdict.add(Anomaly.REORDERED, "x", 7)
    row = next(row for row in markdown(run).splitlines() if row.startswith("| 3 |"))
    assert [cell.strip() for cell in row.split("|")[5:-1]] == [
        "4", "0", "0", "3", "5", "7", "2.0 / 3.0 / 3.0",
    ]  # fmt: skip


def test_the_slowest_start_of_each_size_is_reported() -> None:
    run = played(recoveries=[(5 << 20, 0.5), (6 << 20, 0.75), (200 << 20, 1.5)])
    text = markdown(run)
    assert "| under 8 MiB | 0.75 s |" in text
    assert "| under 256 MiB | 1.50 s |" in text


def test_only_the_measured_part_of_the_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report.keep(3, played(proofs=["p"]), tmp_path)
    report.write_docs(page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| 3 | SIGKILL all |" in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="markers"):
        report.write_docs(page, tmp_path)


def test_results_of_several_runs_come_together_and_the_later_one_counts(tmp_path: Path) -> None:
    other = Scenario(name="4", title="pause", expected="all there", play=nothing)
    report.keep(1, played(problems=["bad"]), tmp_path)
    report.keep(1, Played(scenario=other, result=Result()), tmp_path)
    report.keep(1, played(), tmp_path)
    rows = report.load_rows(1, tmp_path)
    assert {name: row.status for name, row in rows.items()} == {"3": "passed", "4": "passed"}
    assert report.load_rows(3, tmp_path) == {}
    failed = Played(scenario=SCENARIO, result=Result(problems=["bad"]), quick=True)
    report.keep(1, failed, tmp_path)
    assert report.load_rows(1, tmp_path)["3"].status == "passed"


def test_the_page_has_the_markers() -> None:
    text = report.DOCS_PATH.read_text()
    assert text.index(BEGIN) < text.index(END)


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([]) is None
    one = spread([4.0])
    assert one is not None
    assert (one.p50, one.p99, one.max) == (4.0, 4.0, 4.0)
    many = spread([float(n) for n in range(1, 201)])
    assert many is not None
    assert (many.count, many.p50, many.p99, many.max) == (200, 100.0, 198.0, 200.0)


def test_unavailability_is_the_longest_silence_after_each_fault() -> None:
    def at(operation: str, seconds: float) -> dict[str, object]:
        return {"op": operation, "at": int(seconds * 1e9)}

    events = [at("ack", s) for s in (1.0, 2.0, 5.0, 5.1, 6.0, 8.5)]
    events += [at("x-fault", 2.5), at("x-fault", 6.5)]
    assert unavailability(events) == [2.5, 2.0]
    assert unavailability([at("x-fault", 1.0)]) == []


def test_unavailability_is_that_of_the_partitions_a_fault_concerns_until_it_heals() -> None:
    def at(operation: str, seconds: float, **fields: object) -> dict[str, object]:
        return {"op": operation, "at": int(seconds * 1e9), **fields}

    events = [at("ack", s, tp="t/0") for s in (1.0, 4.0, 5.0, 9.0)]
    events += [at("ack", s, tp="t/1") for s in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert unavailability([*events, at("x-fault", 2.0)]) == [4.0, 1.0]
    concerned = at("x-fault", 2.0, tps=["t/0"])
    assert unavailability([*events, concerned]) == [4.0]
    assert unavailability([*events, concerned, at("x-healed", 5.5)]) == [2.0]


@pytest.mark.parametrize("size", [1, 7, 200, 5000])
def test_a_damaged_payload_is_never_taken_for_what_was_sent(size: int) -> None:
    data = payload("p1:17", size)
    assert value_of(data) == "p1:17"
    for position in range(0, len(data), 7):
        bad = bytearray(data)
        bad[position] ^= 1
        # A record that fits in one unit is protected by the batch's checksum alone.
        assert value_of(bytes(bad)) != "p1:17"
    assert value_of(None).startswith("damaged")
    assert value_of(data[:-2]).startswith("damaged") or size < 14
