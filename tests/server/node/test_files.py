"""How many processes the limit of open files has room for."""

import json

import pytest

from moldau.server.node.files import files_problem, partitions_stored, processes_fitting


@pytest.mark.parametrize(
    ("limit", "partitions", "fitting"),
    [(1024, 0, 113), (1024, 200, 13), (200, 0, 10), (128, 0, 1), (16, 1000, 1), (None, 9999, None)],
)
def test_half_of_the_limit_is_for_links_and_logs(limit, partitions, fitting):
    assert processes_fitting(limit, partitions) == fitting


def test_the_limit_that_is_named_has_room_for_exactly_so_many():
    problem = files_problem(20, 200, 10)
    assert problem is not None
    assert "has room for 5 with 10 partitions in one process" in problem
    assert problem.endswith("20 need a limit of 320")
    assert files_problem(20, 320, 10) is None
    assert files_problem(21, 320, 10) is not None
    assert files_problem(5, 200, 10) is None


def test_the_process_with_most_partitions_counts(tmp_path):
    assert partitions_stored(tmp_path / "new") == 0
    for number, count in ((1, 2), (2, 5), (3, 1)):
        directory = tmp_path if number == 1 else tmp_path / f"process-{number}"
        for partition in range(count):
            (directory / "topics" / "t" / ("ab" * 16) / str(partition)).mkdir(parents=True)
        identity = {"broker_id": number, "cluster_id": "C"}
        (directory / "broker.json").write_text(json.dumps(identity))
    assert partitions_stored(tmp_path) == 5
