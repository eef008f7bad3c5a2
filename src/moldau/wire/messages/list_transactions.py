"""ListTransactions (66): the transactions that a broker coordinates."""

from moldau.wire.fields import array, i16, i32, i64, string
from moldau.wire.schema import Request, Response, Struct


class ListTransactionsRequest(Request, key=66, versions=(0, 2), flexible=0):
    state_filters: list[str] = array("string")
    producer_id_filters: list[int] = array("i64")
    duration_filter: int = i64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="0+", default=None)


class ListedTransaction(Struct):
    transactional_id: str = string()
    producer_id: int = i64()
    transaction_state: str = string()


class ListTransactionsResponse(Response, key=66, versions=(0, 2), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    unknown_state_filters: list[str] = array("string")
    transaction_states: list[ListedTransaction] = array(ListedTransaction)
