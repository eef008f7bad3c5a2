"""/api/v1/transactions: transactions of the whole cluster, and their abort.

Any broker answers: the services ask the coordinators, and the leaders of the partitions.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.cluster_transactions import HANGING_MAX, OpenProducer, TransactionListing
from moldau.api.types import INT_MAX, LONG_MAX, NO_LEADER_ID, TransactionState
from moldau.edge.http.operation import TEXT, Operation, number
from moldau.edge.http.query_parameters import (
    PAGE_SIZE,
    PAGE_SIZE_MAX,
    bad_parameter,
    page_size,
    read_text,
)
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.ids import PartitionIndex, TopicPartition

STATES: Final = tuple(state.value for state in TransactionState)
HANGING: Final = "Hanging"


class TransactionPlace(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


class TransactionShown(Struct, frozen=True, kw_only=True):
    """`is_hanging`: open for longer than its timeout; or, with the state Hanging, no id and no
    coordinator (-1), open in its partition and known to none of them."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    age_ms: int | None
    """null: it has no open transaction. In the state Hanging: since its last record."""
    timeout_ms: int | None
    partitions: list[TransactionPlace]
    """The first 1,000."""
    partition_count: int
    coordinator: int
    is_hanging: bool


class TransactionList(Struct, frozen=True, kw_only=True):
    """Those that hang and have no id are on the first page only, and before the others."""

    transactions: list[TransactionShown]
    next: str | None
    silent: list[int]
    """Brokers that did not respond: what they coordinate is missing. If one coordinates any, no
    transaction that no coordinator knows is listed."""


class AbortWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An empty object."""


class TransactionAborted(Struct, frozen=True, kw_only=True):
    transactional_id: str
    state: str
    """Before. Only an open transaction is aborted."""
    is_aborted: bool
    producer_id: int
    producer_epoch: int
    partitions: list[TransactionPlace]


class HangingWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partition: Annotated[int, Meta(ge=0, le=INT_MAX)]
    producer_id: Annotated[int, Meta(ge=0, le=LONG_MAX)]
    producer_epoch: Annotated[int, Meta(ge=0, le=32_767)]


_abort_wanted: Final = msgspec.json.Decoder(AbortWanted)
_hanging_wanted: Final = msgspec.json.Decoder(HangingWanted)

TRANSACTION_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/v1/transactions"): Operation(
        "listTransactions",
        "Transactions of the cluster, in pages, and those that hang",
        {200: TransactionList},
        {
            "limit": number(1, PAGE_SIZE_MAX, default=PAGE_SIZE),
            "after": TEXT,
            "search": {**TEXT, "description": "A part of the transactional id, in any case."},
            "state": {"enum": list(STATES)},
        },
    ),
    ("POST", "/api/v1/transactions/{id}/abort"): Operation(
        "abortTransaction",
        "Abort the open transaction of an id, and fence its producer",
        {200: TransactionAborted},
        {},
        body=AbortWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/transactions/hanging"): Operation(
        "abortHangingTransaction",
        "Abort a transaction that is open in a partition and known to no coordinator",
        {200: TransactionAborted},
        {},
        body=HangingWanted,
        refusals=(404,),
    ),
}


def routes() -> list[Route]:
    async def transactions(request: Request) -> Response:
        check_query(request, "limit", "after", "search", "state")
        size, after = page_size(request), read_text(request, "after")
        search, state = read_text(request, "search") or "", read_text(request, "state")
        if state is not None and state not in STATES:
            raise bad_parameter("state", f"must be one of {', '.join(STATES)}")
        service = session_of(request).cluster_transactions
        page = await service.page(limit=size, after=after, search=search, state=state)
        shown = [_shown(each, broker) for each, broker in page.transactions]
        silent = set(page.silent)
        if after is None and not search and state is None:
            hanging, unheard = await service.hanging()
            silent.update(unheard)
            shown = [*map(_hanging_shown, hanging[:HANGING_MAX]), *shown]
        return respond(TransactionList(transactions=shown, next=page.next, silent=sorted(silent)))

    async def abort(request: Request) -> Response:
        check_query(request)
        await read_body(request, _abort_wanted.decode)
        name = request.path_params["id"]
        done = await session_of(request).cluster_transactions.abort(name)
        return respond(
            TransactionAborted(
                transactional_id=name,
                state=done.state,
                is_aborted=done.is_aborted,
                producer_id=done.producer_id,
                producer_epoch=done.producer_epoch,
                partitions=_places(done.partitions),
            )
        )

    async def abort_hanging(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _hanging_wanted.decode)
        place = TopicPartition(wanted.topic, PartitionIndex(wanted.partition))
        await session_of(request).cluster_transactions.abort_hanging(
            place, wanted.producer_id, wanted.producer_epoch
        )
        return respond(
            TransactionAborted(
                transactional_id="",
                state=HANGING,
                is_aborted=True,
                producer_id=wanted.producer_id,
                producer_epoch=wanted.producer_epoch,
                partitions=_places([place]),
            )
        )

    return [
        Route("/api/v1/transactions", transactions, methods=["GET"]),
        Route("/api/v1/transactions/hanging", abort_hanging, methods=["POST"]),
        # Transactional ids may contain slashes.
        Route("/api/v1/transactions/{id:path}/abort", abort, methods=["POST"]),
    ]


def _shown(each: TransactionListing, coordinator: int) -> TransactionShown:
    return TransactionShown(
        transactional_id=each.transactional_id,
        producer_id=each.producer_id,
        producer_epoch=each.producer_epoch,
        state=each.state,
        age_ms=each.age_ms,
        timeout_ms=each.timeout_ms,
        partitions=_places(each.partitions),
        partition_count=each.partition_count,
        coordinator=coordinator,
        is_hanging=each.is_hanging,
    )


def _hanging_shown(one: OpenProducer) -> TransactionShown:
    place = TopicPartition(one.topic, PartitionIndex(one.partition))
    return TransactionShown(
        transactional_id="",
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        state=HANGING,
        age_ms=one.age_ms,
        timeout_ms=None,
        partitions=_places([place]),
        partition_count=1,
        coordinator=NO_LEADER_ID,
        is_hanging=True,
    )


def _places(places: list[TopicPartition]) -> list[TransactionPlace]:
    return [TransactionPlace(topic=at.topic, partition=at.partition) for at in places]
