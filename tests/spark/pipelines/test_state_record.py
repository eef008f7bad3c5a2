"""What is said of a pipeline."""

import dataclasses
import os
import socket

import msgspec
import pytest

from moldau.client.processes import started_at
from moldau.spark.pipelines.spec import Outcome, Progress, State
from moldau.spark.pipelines.state import LOST, SILENT_SECONDS_MAX, Record, decode_record

NOW = 1_800_000_000_000
FAR = Record(
    name="n",
    kind="count",
    state=State.RUNNING,
    host="far.example",
    pid=1,
    updated_at=NOW,
    settings={"a": [1, "x"]},
    progress=Progress(rows=3, lag=4),
    outcome=Outcome(summary="s", details={"k": {"z": 1}}),
)


def test_a_record_comes_back_as_it_was():
    assert decode_record(msgspec.json.encode(FAR)) == FAR


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"name": "x"}', b"\xff"])
def test_what_is_no_record_is_none(data):
    assert decode_record(data) is None


def test_fields_of_later_versions_are_let_be():
    assert decode_record(msgspec.json.encode(FAR)[:-1] + b',"new_field":1}') == FAR


def test_a_pipeline_of_another_machine_is_lost_when_it_is_silent_for_long():
    later = NOW + int(SILENT_SECONDS_MAX * 1000)
    assert FAR.shown_state(later) == "running"
    assert FAR.shown_state(later + 1) == LOST
    ended = dataclasses.replace(FAR, state=State.FINISHED)
    assert ended.shown_state(later + 1) == "finished"


def test_a_pipeline_of_this_machine_is_lost_when_its_process_is_gone():
    mine = dataclasses.replace(
        FAR, host=socket.gethostname(), pid=os.getpid(), process=started_at(os.getpid())
    )
    assert mine.shown_state(NOW + 10**9) == "running", "silent, but there"
    assert dataclasses.replace(mine, process="another").shown_state(NOW) == LOST
