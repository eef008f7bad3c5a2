"""Administrative requests while a broker is down: the metadata still names it."""

from typing import Any

import pytest

from moldau.client.errors import NotFoundError
from moldau.client.wire.config_admin import ConfigAdmin
from moldau.client.wire.transaction_admin import TransactionAdmin
from moldau.model.errors import ErrorCode
from moldau.wire.messages.describe_transactions import (
    DescribedTransaction,
    DescribeTransactionsResponse,
)
from moldau.wire.messages.find_coordinator import FindCoordinatorResponse, FoundCoordinator
from moldau.wire.messages.list_transactions import ListedTransaction, ListTransactionsResponse
from moldau.wire.messages.metadata import MetadataBroker, MetadataResponse
from moldau.wire.registry import ApiKey

pytestmark = pytest.mark.inprocess

DEAD, ALIVE = 1, 2


@pytest.fixture
def brokers(scripted_broker: Any) -> str:
    """The address of broker 2; broker 1 is down, and is named first."""
    host, port = scripted_broker.host, scripted_broker.port
    registered = [
        MetadataBroker(node_id=DEAD, host="127.0.0.1", port=1),
        MetadataBroker(node_id=ALIVE, host=host, port=port),
    ]
    missing = DescribedTransaction(
        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        transactional_id="pay",
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )
    listed = ListedTransaction(transactional_id="pay", producer_id=7, transaction_state="Ongoing")
    found = FoundCoordinator(key="pay", node_id=ALIVE, host=host, port=port)
    scripted_broker.handlers |= {
        ApiKey.METADATA: lambda *_: MetadataResponse(
            brokers=registered, topics=[], controller_id=ALIVE
        ),
        ApiKey.LIST_TRANSACTIONS: lambda *_: ListTransactionsResponse(
            unknown_state_filters=[], transaction_states=[listed]
        ),
        ApiKey.FIND_COORDINATOR: lambda *_: FindCoordinatorResponse(coordinators=[found]),
        ApiKey.DESCRIBE_TRANSACTIONS: lambda *_: DescribeTransactionsResponse(
            transaction_states=[missing]
        ),
    }
    return str(scripted_broker.bootstrap)


def test_transactions_of_the_other_brokers_are_listed(brokers: str) -> None:
    with TransactionAdmin(brokers) as admin:
        assert [one.transactional_id for one in admin.transactions()] == ["pay"]
        assert admin.failures.keys() == {DEAD}


def test_a_coordinator_is_found(brokers: str) -> None:
    with TransactionAdmin(brokers) as admin, pytest.raises(NotFoundError, match="pay"):
        admin.transaction("pay")


def test_a_broker_that_responds_is_chosen(brokers: str) -> None:
    with ConfigAdmin(brokers) as admin:
        assert admin.responsive_broker() == ALIVE
