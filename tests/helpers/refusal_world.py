"""A broker for the requests of `kafka_refusals`, and the versions in which they are sent."""

from collections.abc import Sequence
from typing import Any

from guarded_calls import GuardedWorld
from kafka_refusals import UNKNOWN_ID, Walk

from moldau.data.fetch import PartitionFetch, PartitionFetchResult
from moldau.edge.kafka.served_apis import APIS
from moldau.groups.results import GroupState, ListedGroup
from moldau.model.errors import ErrorCode
from moldau.model.ids import BrokerId, ProducerId
from moldau.transactions.results import ListedTransaction


def fetch_unknown(requests: Sequence[PartitionFetch], **options: Any) -> None:
    assert {each.topic for each in requests} <= {None}
    options["on_ready"]([PartitionFetchResult(UNKNOWN_ID, -1, -1, None, 0) for _ in requests])


def world() -> GuardedWorld:
    made = GuardedWorld()
    listed = ListedGroup(group_id="billing", protocol_type="consumer", state=GroupState.EMPTY)
    made.services["groups"].answers["list_groups"] = (ErrorCode.NONE, [listed])
    ongoing = ListedTransaction(
        transactional_id="payments", producer_id=ProducerId(1), state="Ongoing"
    )
    made.services["transactions"].answers["list_transactions"] = (ErrorCode.NONE, [ongoing])
    made.services["fetch"].effects["fetch"] = fetch_unknown
    made.services["cluster"].answers.update(
        {"alive": frozenset({BrokerId(1)}), "controller_id": 1, "is_cut_off": False}
    )
    return made


def served_versions(walk: Walk) -> list[int]:
    """The first and the last version that the request is for."""
    first, last = APIS[walk.request.API_KEY].versions
    least, most = walk.versions or (first, last)
    return sorted({max(first, least), min(last, most)})
