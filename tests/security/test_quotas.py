"""Which quota applies, and that the rate holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.security.quotas import (
    WAIT_SECONDS_MAX,
    QuotaBuckets,
    QuotaEntity,
    QuotaKey,
    find_limit,
)

ORDER = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", ""),
    QuotaEntity("alice", None),
    QuotaEntity("", "app"),
    QuotaEntity("", ""),
    QuotaEntity("", None),
    QuotaEntity(None, "app"),
    QuotaEntity(None, ""),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_applies(first):
    quotas = {
        entity: {"producer_byte_rate": float(number)}
        for number, entity in enumerate(ORDER)
        if number >= first
    }
    found = find_limit(quotas, QuotaKey.PRODUCE, "alice", "app")
    assert found is not None
    assert found.rate == first


def test_a_quota_of_another_key_or_user_does_not_apply():
    quotas = {
        QuotaEntity("alice", None): {"consumer_byte_rate": 1.0},
        QuotaEntity("bob", None): {"producer_byte_rate": 1.0},
    }
    assert find_limit(quotas, QuotaKey.PRODUCE, "alice", "app") is None


def buckets(**rates: float) -> QuotaBuckets:
    made = QuotaBuckets()
    made.replace(
        {QuotaEntity(user, None): {QuotaKey.PRODUCE: rate} for user, rate in rates.items()}
    )
    return made


def test_a_client_within_its_quota_never_waits():
    made = buckets(alice=1000)
    for tenth in range(100):
        assert made.charge(QuotaKey.PRODUCE, "alice", "a", 100, tenth / 10) == 0


def test_all_clients_of_a_user_share_its_quota():
    made = buckets(alice=1000)
    made.charge(QuotaKey.PRODUCE, "alice", "one", 1000, 0)
    assert made.charge(QuotaKey.PRODUCE, "alice", "two", 1000, 0) == pytest.approx(1)
    assert made.charge(QuotaKey.PRODUCE, "bob", "two", 10**9, 0) == 0


def test_users_of_a_default_quota_have_one_each():
    made = QuotaBuckets()
    made.replace({QuotaEntity("", None): {QuotaKey.PRODUCE: 1000.0}})
    made.charge(QuotaKey.PRODUCE, "alice", "a", 1000, 0)
    assert made.charge(QuotaKey.PRODUCE, "bob", "a", 1000, 0) == 0
    assert made.charge(QuotaKey.PRODUCE, "alice", "a", 500, 0) == pytest.approx(0.5)


def test_a_huge_request_passes_and_its_client_waits_for_a_bounded_time():
    made = buckets(alice=10)
    assert made.charge(QuotaKey.PRODUCE, "alice", "a", 10**9, 0) == WAIT_SECONDS_MAX
    # After the wait it may go on, at its rate.
    assert made.charge(QuotaKey.PRODUCE, "alice", "a", 10, WAIT_SECONDS_MAX) == pytest.approx(1)


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e6)), min_size=1, max_size=50),
)
def test_a_client_that_waits_does_not_exceed_its_rate(rate, steps):
    made = buckets(alice=rate)
    now, taken = 0.0, 0.0
    for pause, amount in steps:
        now += pause
        # What it takes at once is bounded by the longest wait.
        amount = min(amount, WAIT_SECONDS_MAX / 2 * rate)
        now += made.charge(QuotaKey.PRODUCE, "alice", "a", amount, now)
        taken += amount
    assert taken <= rate * (now + 1) * (1 + 1e-6) + 1e-6


def test_the_memory_for_client_ids_is_bounded(monkeypatch):
    monkeypatch.setattr("moldau.security.quotas._BUCKETS_MAX", 100)
    made = QuotaBuckets()
    made.replace({QuotaEntity(None, ""): {QuotaKey.FETCH: 1.0}})
    for number in range(1000):
        made.charge(QuotaKey.FETCH, "alice", f"client-{number}", 1, number / 1000)
    assert len(made._buckets) <= 100
    assert len(made._limits) <= 100
