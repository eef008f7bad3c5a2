"""The Raft groups of a real cluster, before and after its leader was killed."""

from typing import Any

import pytest

from http_client import ask
from moldau.testing.cluster import Cluster
from moldau.testing.waiting import wait_until

pytestmark = pytest.mark.system


def groups(address: str, query: str = "") -> list[dict[str, Any]]:
    reply = ask(address, "GET", f"/api/v1/raft{query}")
    assert reply.status == 200, reply.body
    return list(reply.body["groups"])


def test_any_broker_shows_all_groups_and_what_happened() -> None:
    with Cluster(brokers=3) as cluster:
        addresses = [cluster.brokers[number].http_address for number in (1, 2, 3)]
        wanted = {"name": "t", "partitions": 3, "replication_factor": 3}
        assert ask(addresses[0], "POST", "/api/v1/topics", wanted).status == 201
        body = {"records": [{"partition": 0, "value": "x"}] * 5}
        assert ask(addresses[0], "POST", "/api/v1/topics/t/records", body).status == 200

        def settled(address: str) -> bool:
            found = groups(address)
            return len(found) == 4 and all(
                one["leader"] > 0
                and len(one["members"]) == 3
                and all(member["is_in_sync"] for member in one["members"])
                for one in found
            )

        for address in addresses:
            wait_until(lambda at=address: settled(at), "all members are in sync")
            found = groups(address)
            assert [one["group"] for one in found] == ["metadata", "t/0", "t/1", "t/2"]
            for one in found:
                leader = next(m for m in one["members"] if m["broker"] == one["leader"])
                assert (leader["role"], leader["lag"]) == ("voter", 0)
                assert "was elected leader in term" in str(one["recent"])
            assert found[1]["commit"] >= 5
        assert [one["group"] for one in groups(addresses[1], "?search=T/1")] == ["t/1"]
        page = ask(addresses[2], "GET", "/api/v1/raft?limit=1&after=metadata").body
        assert ([one["group"] for one in page["groups"]], page["next"]) == (["t/0"], "t/0")
        for query in ("limit=0", "after=x", "group=t"):
            assert ask(addresses[0], "GET", f"/api/v1/raft?{query}").status == 400
        (first,) = groups(addresses[0], "?search=t/0")
        leader, term = first["leader"], first["term"]
        cluster.brokers[leader].kill()
        left = addresses[leader % 3]

        def moved() -> bool:
            (now,) = groups(left, "?search=t/0")
            return now["leader"] not in (leader, -1) and now["term"] > term

        wait_until(moved, "another broker leads")
        (now,) = groups(left, "?search=t/0")
        assert f"broker {now['leader']} was elected leader" in now["recent"][0]["text"]
