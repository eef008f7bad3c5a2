"""When a broker that crashed is started again."""

from moldau.supervisor.backoff import Backoff


def test_the_wait_grows_to_a_bound():
    backoff = Backoff()
    assert [backoff.died(0.0, None) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    for _ in range(1000):
        assert backoff.died(0.0, None) == 30


def test_a_healthy_period_is_a_new_beginning():
    backoff = Backoff()
    for _ in range(4):
        backoff.died(0.0, None)
    assert backoff.died(10.0, 5.0) == 8
    assert backoff.died(100.0, 70.0) == 0.5
    assert backoff.deaths == 1
