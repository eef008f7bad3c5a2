"""Consume, transform, produce: each input once in the output, whoever is killed meanwhile."""

import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from transformer import Transformer, committed_output, feed

from moldau.testing.broker import Broker
from moldau.testing.cluster import Cluster, ClusterBroker
from moldau.testing.ports import free_ports

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not os.environ.get("MOLDAU_TEST_SOAK"),
        reason="librdkafka may hang in a transaction when brokers die, past its own timeouts; "
        "wanted with MOLDAU_TEST_SOAK=1",
    ),
]

INPUTS = 120
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
NO_BROKER_LEFT = {
    # librdkafka forgets its brokers when the last one is gone, but not that one of them coordinated
    # the group: it then waits for that one for ever (its issue 5511).
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 200,
}


@pytest.mark.safety
def test_each_input_is_in_the_output_exactly_once_whichever_process_is_killed(
    moldau_cluster: Cluster,
) -> None:
    cluster, name = moldau_cluster, "once"
    feed(cluster.bootstrap, name, inputs=INPUTS, replicas=3)
    transformer = Transformer(cluster.bootstrap, name)
    # In the midst of a transaction, and of its end: nobody knows where that is hit.
    rng = random.Random(7)
    victims = [(STATE, 0), (f"{name}-out", 0), (OFFSETS, 0), (STATE, 0)]
    killed: ClusterBroker | None = None
    rounds = idle = 0
    while idle < 2 or victims:
        rounds += 1
        assert rounds < 200, "it does not come to an end"
        blow: threading.Timer | None = None
        if rounds % 4 == 0 and victims:
            if killed is not None:
                killed.start()
                cluster.wait_ready()
            killed = cluster.leader(*victims.pop(0))
            blow = threading.Timer(rng.uniform(0.0, 0.03), killed.kill)
            blow.start()
        idle = 0 if transformer.round() else idle + 1
        if blow is not None:
            blow.join()
    if killed is not None:
        killed.start()
    cluster.wait_ready()
    transformer.consumer.close()
    found = committed_output(cluster.bootstrap, f"{name}-out")
    assert found == Counter({b"%d" % number: 1 for number in range(INPUTS)})


@pytest.mark.safety
def test_each_input_is_in_the_output_exactly_once_when_the_only_broker_is_killed(
    tmp_path: Path,
) -> None:
    name, kills = "alone", 4
    rng = random.Random(11)
    with Broker(data_dir=tmp_path / "data", port=free_ports(1)[0]) as broker:
        feed(broker.bootstrap, name, inputs=INPUTS, replicas=1)
        transformer = Transformer(broker.bootstrap, name, NO_BROKER_LEFT)

        def restart() -> None:
            broker.kill()
            broker.start()

        rounds = idle = 0
        while idle < 2 or kills:
            rounds += 1
            assert rounds < 200, "it does not come to an end"
            blow: threading.Timer | None = None
            if rounds % 4 == 0 and kills:
                kills -= 1
                blow = threading.Timer(rng.uniform(0.0, 0.03), restart)
                blow.start()
            idle = 0 if transformer.round() else idle + 1
            if blow is not None:
                blow.join()
        transformer.consumer.close()
        # Nobody was told to begin anew: the transactions were only held up.
        assert transformer.rebirths == 0
        found = committed_output(broker.bootstrap, f"{name}-out")
    assert found == Counter({b"%d" % number: 1 for number in range(INPUTS)})
