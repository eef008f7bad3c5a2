"""Brokers that share a machine, and a second machine that comes later: real processes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def moldau(*words: str, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "moldau", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_second_machine_gets_votes_and_copies() -> None:
    with Cluster(2, settings={"MACHINE": "host-1", "TOPIC__AUTO_CREATE": "false"}) as cluster:
        create = ("topic", "create", "t", "--partitions", "4", "-b", cluster.bootstrap)
        subprocess.run([sys.executable, "-m", "moldau", *create], check=True, capture_output=True)
        cluster.add(settings={"MACHINE": "host-2"})

        def voters() -> list[int]:
            return list(cluster.topology()["voters"])

        wait_until(lambda: voters() == [1, 3], "one of each machine votes", describe=voters)
        machines = {one["id"]: one["machine"] for one in cluster.topology()["brokers"]}
        assert machines == {1: "host-1", 2: "host-1", 3: "host-2"}

        plan = moldau("partition", "plan", "-b", cluster.bootstrap, "-o", "json")
        assert len(plan["moves"]) == 4
        for move in plan["moves"]:
            assert sorted(move["from"]) == [1, 2]
            assert len({machines[one] for one in move["to"]}) == 2

        cluster.add(settings={"MACHINE": "host-2"})
        wait_until(lambda: voters() == [1, 2, 3, 4], "two of each vote", describe=voters)
