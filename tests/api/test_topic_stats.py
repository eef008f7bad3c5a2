"""Figures of topics are added up over the brokers that lead their partitions."""

from types import SimpleNamespace
from typing import Any

from handler_calls import FakeCluster, brokers, image, topic

from harness.virtual_loop import run_virtually
from moldau.api.topic_rates import TopicRate
from moldau.api.topic_stats import TopicFigures, TopicStats
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod

ORDERS, OTHERS = topic("orders", [1, 2], [1, 2], [1, 2]), topic("others", [1, 2])


class Net:
    """Brokers in one process; each leads some partitions, with ten records and 100 bytes each."""

    def __init__(self, *led: set[tuple[str, int]]) -> None:
        self.cluster: Any = FakeCluster(image(brokers(1, 2), ORDERS, OTHERS))
        self.stats = [self._broker(number, partitions) for number, partitions in enumerate(led, 1)]
        self.has_rates = True
        self.silent: set[int] = set()

    def _broker(self, number: int, led: set[tuple[str, int]]) -> TopicStats:
        def find(name: str, index: int) -> Any:
            return SimpleNamespace(
                is_leader=(name, index) in led, start_offset=5, high_watermark=15, size_bytes=100
            )

        def span() -> Any:
            return SimpleNamespace(of=lambda _: TopicRate(4.0, 2.0)) if self.has_rates else None

        replicas: Any = SimpleNamespace(get=find)
        rates: Any = SimpleNamespace(span=span)
        return TopicStats(
            me=BrokerId(number),
            cluster=self.cluster,
            replicas=replicas,
            rates=rates,
            caller=self,
        )

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        assert method == PeerMethod.TOPIC_STATS
        if peer in self.silent:
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "it took too long")
        return await self.stats[peer - 1].on_request(BrokerId(1), payload)

    def ask(self) -> list[TopicFigures]:
        found = run_virtually(self.stats[0].of([ORDERS, OTHERS]))
        return [found[each.topic_id] for each in (ORDERS, OTHERS)]


def net() -> Net:
    return Net({("orders", 0), ("others", 0)}, {("orders", 1), ("orders", 2)})


def test_all_leaders_count():
    orders, others = net().ask()
    assert orders == TopicFigures(records=30, log_bytes=300, bytes_in=8.0, records_in=4.0)
    assert others == TopicFigures(records=10, log_bytes=100, bytes_in=4.0, records_in=2.0)


def test_a_topic_is_not_known_in_part():
    made = net()
    made.silent = {2}
    orders, others = made.ask()
    assert orders == TopicFigures()
    assert others.records == 10


def test_a_dead_broker_is_not_asked():
    made = net()
    made.cluster.alive = frozenset({1})
    assert made.ask()[0] == TopicFigures()


def test_rates_that_nobody_knows_yet():
    made = net()
    made.has_rates = False
    assert made.ask()[0] == TopicFigures(records=30, log_bytes=300)


def test_a_topic_that_is_gone_has_no_figures():
    made = net()
    made.cluster.image = image(brokers(1, 2), ORDERS)
    orders, others = made.ask()
    assert orders.records == 30
    assert others == TopicFigures()
