"""What an event of a live view says of partitions that do not respond."""

import json

from moldau.api.search.hearing import Silent
from moldau.api.search.types import LiveBatch
from moldau.edge.http.live import _event
from moldau.edge.http.record_json import RecordSelection
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.ids import BrokerId


async def shown(batch: LiveBatch) -> object:
    event = (await _event(batch, RecordSelection())).decode()
    return json.loads(event.removeprefix("data: "))


async def test_silent_partitions_are_named_when_they_change() -> None:
    assert await shown(LiveBatch([], 3, 0)) == {"records": [], "skipped": 3}
    silent = [Silent(BrokerId(2), (0, 4), "why"), Silent(NO_LEADER_ID, (1,), "no leader")]
    assert await shown(LiveBatch([], 0, 0, silent)) == {
        "records": [],
        "skipped": 0,
        "silent": [
            {"broker": 2, "partitions": [0, 4], "reason": "why"},
            {"broker": None, "partitions": [1], "reason": "no leader"},
        ],
    }
    assert await shown(LiveBatch([], 0, 0, [])) == {"records": [], "skipped": 0, "silent": []}
