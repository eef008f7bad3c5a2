"""Which quota applies, and that the rate holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.security.quotas import (
    BURST_SECONDS,
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


def test_each_key_has_the_most_specific_quota_that_names_it():
    buckets = QuotaBuckets(
        {
            QuotaEntity("alice", "app"): {QuotaKey.PRODUCE: 5.0},
            QuotaEntity("alice", None): {QuotaKey.PRODUCE: 1.0, QuotaKey.FETCH: 2.0},
            QuotaEntity(None, ""): {QuotaKey.REQUEST: 50.0, QuotaKey.MUTATION: 3.0},
        }
    )
    found = buckets.of("alice", "app", 0.0)
    assert {key: bucket.rate for key, bucket in found.items()} == {
        QuotaKey.PRODUCE: 5.0,
        QuotaKey.FETCH: 2.0,
        QuotaKey.REQUEST: 0.5,
        QuotaKey.MUTATION: 3.0,
    }
    assert buckets.of("bob", "", 0.0).keys() == {QuotaKey.REQUEST, QuotaKey.MUTATION}


class World:
    """Clients under quotas, with a clock that the test moves."""

    def __init__(self, key: QuotaKey = QuotaKey.PRODUCE, **rates: float) -> None:
        self.key = key
        self.now = 100.0
        self.buckets = QuotaBuckets(self.quotas(**rates))

    def quotas(self, **rates: float) -> dict[QuotaEntity, dict[str, float]]:
        return {QuotaEntity(user, None): {self.key: rate} for user, rate in rates.items()}

    def take(self, user: str, amount: float, client_id: str = "app") -> float:
        bucket = self.buckets.of(user, client_id, self.now).get(self.key)
        return 0.0 if bucket is None else bucket.take(amount, self.now)


def test_a_client_within_its_quota_never_waits():
    world = World(alice=1000)
    for _ in range(100):
        assert world.take("alice", 100) == 0
        world.now += 0.1


def test_all_clients_of_a_user_share_its_quota():
    world = World(alice=1000)
    world.take("alice", 1000, "one")
    assert world.take("alice", 1000, "two") == pytest.approx(1)
    assert world.take("bob", 10**9, "two") == 0


def test_users_and_client_ids_of_a_default_quota_have_one_each():
    world = World()
    world.buckets = QuotaBuckets({QuotaEntity("", ""): {QuotaKey.PRODUCE: 1000.0}})
    world.take("alice", 1000)
    assert world.take("bob", 1000) == 0
    assert world.take("alice", 1000, "another") == 0
    assert world.take("alice", 500) == pytest.approx(0.5)


def test_request_time_is_in_percent_of_a_core():
    world = World(QuotaKey.REQUEST, alice=10)
    assert world.take("alice", 0.1) == 0
    assert world.take("alice", 0.1) == pytest.approx(1)


def test_a_huge_request_passes_and_its_client_waits_for_a_bounded_time():
    world = World(alice=10)
    assert world.take("alice", 10**9) == pytest.approx(WAIT_SECONDS_MAX)
    # After the wait it may go on, at its rate.
    world.now += WAIT_SECONDS_MAX
    assert world.take("alice", 10) == pytest.approx(1)


def test_a_wait_ends_when_the_debt_is_paid():
    world = World(alice=1000)
    world.take("alice", 3000)
    bucket = world.buckets.of("alice", "app", world.now)[QuotaKey.PRODUCE]
    assert bucket.wait(world.now) == pytest.approx(2)
    assert bucket.wait(world.now + 1.5) == pytest.approx(0.5)
    assert bucket.wait(world.now + 2) == 0
    assert not bucket.is_paid(world.now + 2)
    assert bucket.is_paid(world.now + 3)


def test_many_connections_of_a_client_do_not_exceed_its_rate():
    """Each sends one request as soon as none has to wait, and all of them at once."""
    world = World(alice=1000)
    bucket = world.buckets.of("alice", "app", world.now)[QuotaKey.PRODUCE]
    began, taken = world.now, 0
    for _ in range(20):
        for _ in range(100):
            bucket.take(1000, world.now)
            taken += 1000
        world.now += bucket.wait(world.now)
    assert taken <= 1000 * (world.now - began + BURST_SECONDS) * (1 + 1e-6)


def test_the_smallest_quota_divides_by_nothing():
    world = World(QuotaKey.REQUEST, alice=5e-324)
    assert world.take("alice", 1.0) == pytest.approx(WAIT_SECONDS_MAX)


def test_a_new_quota_holds_at_once_and_what_was_taken_stays_taken():
    world = World(alice=1000)
    assert world.take("alice", 4000) == pytest.approx(3)
    world.buckets.replace(world.quotas(alice=2000))
    assert world.take("alice", 0) == pytest.approx(1)
    world.buckets.replace(world.quotas(bob=1))
    assert world.take("alice", 10**9) == 0


def test_a_lower_quota_shuts_nobody_out_for_longer_than_the_longest_wait():
    world = World(alice=100e6)
    assert world.take("alice", 1e9) == pytest.approx(9)
    world.now += 1
    world.buckets.replace(world.quotas(alice=1e4))
    # One that only waits, and takes nothing.
    bucket = world.buckets.of("alice", "app", world.now)[QuotaKey.PRODUCE]
    assert bucket.wait(world.now) == pytest.approx(WAIT_SECONDS_MAX)
    assert bucket.wait(world.now + WAIT_SECONDS_MAX) == pytest.approx(0)


def test_time_before_a_change_pays_at_the_rate_of_then():
    world = World(alice=1000)
    world.take("alice", 5000)
    world.now += 2
    world.buckets.replace(world.quotas(alice=500))
    assert world.take("alice", 0) == pytest.approx(3000 / 500 - BURST_SECONDS)


@given(
    st.floats(1, 1e6),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e6)), min_size=1, max_size=50),
)
def test_a_client_that_waits_does_not_exceed_its_rate(rate, steps):
    world = World(alice=rate)
    began, taken = world.now, 0.0
    for pause, amount in steps:
        world.now += pause
        # What it takes at once is bounded by the longest wait.
        amount = min(amount, WAIT_SECONDS_MAX / 2 * rate)
        world.now += world.take("alice", amount)
        taken += amount
    assert taken <= rate * (world.now - began + BURST_SECONDS) * (1 + 1e-6) + 1e-6


def test_the_memory_for_client_ids_is_bounded(monkeypatch):
    monkeypatch.setattr("moldau.security.quotas.CLIENTS_MAX", 100)
    world = World()
    world.buckets = QuotaBuckets(
        {QuotaEntity(None, ""): {QuotaKey.PRODUCE: 1.0}, QuotaEntity("bob", None): {"x": 1.0}}
    )
    for number in range(1000):
        world.take("alice", 1, f"client-{number}")
        world.take("bob", 1, f"other-{number}")
        world.now += 0.001
    assert len(world.buckets._buckets) <= 100
    assert len(world.buckets._clients) <= 100


def test_a_client_in_debt_is_not_forgotten_for_those_that_owe_nothing(monkeypatch):
    monkeypatch.setattr("moldau.security.quotas.CLIENTS_MAX", 100)
    world = World()
    world.buckets = QuotaBuckets({QuotaEntity(None, ""): {QuotaKey.PRODUCE: 1000.0}})
    world.take("alice", 20_000, "greedy")
    for number in range(1000):
        world.take("alice", 1, f"client-{number}")
        world.now += 0.01
    assert world.take("alice", 0, "greedy") > 5
