"""Which transactional ids a client learns of."""

from typing import Any

from guarded_calls import GuardedWorld, allow, outcome
from use_case_samples import TRANSACTION

from moldau.api.cluster_transactions import TransactionPage
from moldau.security.acl import Operation


def test_the_service_asks_for_the_right_before_it_makes_a_page() -> None:
    made = GuardedWorld()
    made.grant([allow(Operation.DESCRIBE, TRANSACTION, "mine")])
    asked: list[bool] = []

    def page(sees: Any, **_: Any) -> TransactionPage:
        asked.extend(map(sees, ("mine", "theirs")))
        return TransactionPage(transactions=[], next=None, silent=[])

    made.services["cluster_transactions"].effects["page"] = page
    outcome(
        lambda s: s.cluster_transactions.page(limit=1, search="t", state="Ongoing"), made.session()
    )
    assert asked == [True, False]
