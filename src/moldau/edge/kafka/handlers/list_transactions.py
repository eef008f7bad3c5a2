"""ListTransactions (66): the transactional ids that this broker coordinates."""

from moldau.api.types import TransactionState
from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import Steps, in_turns
from moldau.wire.messages.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_STATES = frozenset(state.value for state in TransactionState)


@in_turns
def handle(call: Call, request: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
    known = [state for state in request.state_filters if state in _STATES]
    unknown = [state for state in request.state_filters if state not in _STATES]
    if unknown and not known:
        # A filter that matches nothing is not the same as no filter.
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=[])
    error, found = call.session.transactions.list_transactions(
        known, request.producer_id_filters, request.duration_filter
    )
    listed = []
    for each in found:
        yield
        listed.append(
            ListedTransaction(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
        )
    return ListTransactionsResponse(
        error_code=error, unknown_state_filters=unknown, transaction_states=listed
    )


API = Api(
    ListTransactionsRequest,
    versions=(0, 1),
    handle=handle,
    note="no filter by pattern: the broker does not run clients' regular expressions",
)
