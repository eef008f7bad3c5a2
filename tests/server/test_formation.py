"""Who bootstraps among the initial members, and who joins or waits: decided over real HTTP."""

import asyncio
from pathlib import Path

import pytest

from http_cluster import SECRET, FakeCluster, served
from moldau.client.cluster_client import ClusterClient
from moldau.client.errors import UnavailableError
from moldau.log.datadir import Identity
from moldau.log.secret_file import ClusterSecret
from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.server.config.schema import ServerConfig
from moldau.server.formation import Formation, served_as_newcomer
from moldau.server.machine import Machine
from moldau.server.membership import Endpoints, resolve_membership
from moldau.server.ports import ReservedPort
from moldau.server.storage import Storage
from moldau.testing.ports import free_ports
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.inprocess


class Newcomer:
    """One of the initial members, with an empty directory unless it is given one."""

    def __init__(
        self, ports: list[int], number: int, folder: Path, advertised: int | None = None
    ) -> None:
        members = ",".join(f"127.0.0.1:{port}" for port in ports)
        secret = folder / "secret"
        secret.write_text("a" * 40)
        self.config = ServerConfig(
            data_dir=str(folder / f"data{number}"),
            initial_members=members,
            cluster_secret_file=str(secret),
        )
        self.machine = Machine()
        name = None if advertised is None else Endpoint("127.0.0.1", advertised)
        self.port = ReservedPort("http.addr", Endpoint("127.0.0.1", ports[number]), name)
        self.formation = Formation(self.config, self.port.advertised, self.machine)

    async def find(self, *, may_bootstrap: bool = True) -> Endpoint | None:
        async with served_as_newcomer(self.formation, self.port, self.machine, None, is_new=True):
            return await self.formation.find(may_bootstrap=may_bootstrap)


async def waits(formation: Formation, text: str, *tasks: asyncio.Task[Endpoint | None]) -> None:
    """Returns when a broker says what it waits for; fails if it has decided instead."""
    while text not in formation.state:
        assert not any(task.done() for task in tasks), tasks
        await asyncio.sleep(0.01)


async def test_the_first_bootstraps_when_all_others_are_new(tmp_path: Path) -> None:
    ports = free_ports(3)
    first, *others = (Newcomer(ports, number, tmp_path) for number in range(3))
    waiting = [asyncio.create_task(one.find()) for one in others]
    assert await first.find() is None
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_it_waits_while_one_does_not_respond(tmp_path: Path) -> None:
    ports = free_ports(3)
    first, second, _ = (Newcomer(ports, number, tmp_path) for number in range(3))
    waiting = [asyncio.create_task(one.find()) for one in (first, second)]
    await waits(first.formation, f"127.0.0.1:{ports[2]}", *waiting)
    assert f"127.0.0.1:{ports[1]}" not in first.formation.state.partition("waiting")[2]
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_another_broker_at_the_name_of_a_member_does_not_say_that_it_is_new(
    tmp_path: Path,
) -> None:
    ports = free_ports(3)
    first, second = (Newcomer(ports, number, tmp_path) for number in range(2))
    # The third is down, and its name leads to a second address of the second one.
    misled = Newcomer(ports, 2, tmp_path, advertised=ports[1])
    waiting = [asyncio.create_task(one.find()) for one in (first, second, misled)]
    await waits(first.formation, f"127.0.0.1:{ports[1]} responds there", *waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_it_joins_if_another_has_a_cluster(tmp_path: Path) -> None:
    with served(FakeCluster()) as world:
        first = Newcomer([*free_ports(2), world.port], 0, tmp_path)
        found = asyncio.run(asyncio.wait_for(first.find(), wait_seconds_max()))
        assert found == Endpoint("127.0.0.1", world.port)


def test_who_has_several_addresses_passes_over_a_broker_without_a_cluster(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    alone, own = Newcomer([port], 0, tmp_path), f"127.0.0.1:{port}"

    async def ask(member: str) -> None:
        waiting = asyncio.create_task(alone.find(may_bootstrap=False))
        await waits(alone.formation, "about to join", waiting)
        assert (await asyncio.to_thread(ClusterClient([own, member]).topology)).brokers
        with pytest.raises(UnavailableError, match="about to join"):
            await asyncio.to_thread(ClusterClient([own]).topology)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    with served(FakeCluster()) as world:
        asyncio.run(ask(f"127.0.0.1:{world.port}"))


async def test_others_with_other_members_are_refused(tmp_path: Path) -> None:
    ports = free_ports(2)
    first, second = Newcomer(ports, 0, tmp_path), Newcomer(ports[::-1], 0, tmp_path)
    waiting = asyncio.create_task(second.find())
    with pytest.raises(ConfigError, match="must be the same for all brokers"):
        await first.find()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_the_configured_secret_is_that_of_the_cluster(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    alone = Newcomer([port], 0, tmp_path)
    storage = Storage.open(alone.config, alone.machine)
    try:
        http = alone.port.advertised
        entered = await resolve_membership(
            alone.config,
            storage,
            Endpoints(kafka=http, raft=http, http=http),
            alone.machine,
            is_log_empty=True,
            formation=alone.formation,
        )
        assert entered.is_bootstrap_broker
        assert storage.read_secret() == entered.secret != ClusterSecret(SECRET)
        # The bootstrap is on disk: a crash now continues it, whatever the others say.
        assert storage.identity is not None
        assert storage.identity.is_bootstrapping
    finally:
        storage.close()


async def test_a_directory_that_was_about_to_join_bootstraps_nothing(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    alone = Newcomer([port], 0, tmp_path)
    storage = Storage.open(alone.config, alone.machine)
    storage.become(Identity(broker_id=None, cluster_id=None, directory_id="d"))
    storage.close()
    waiting = asyncio.create_task(alone.find(may_bootstrap=False))
    await waits(alone.formation, "about to join", waiting)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
