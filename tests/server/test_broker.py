"""A broker from start to stop, and what is left when it does not come that far."""

import asyncio
import errno
import json
import select
import shutil
import socket
import stat
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partitions_world import creation

from moldau.data.partitions import Partitions
from moldau.log.datadir import Identity
from moldau.metadata.commands import DeleteTopic
from moldau.metadata.image import Image
from moldau.model.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    ErrorCode,
    MoldauError,
    RefusedError,
    StorageError,
)
from moldau.model.ids import BrokerId, Epoch, TopicId
from moldau.model.layout import SECRET_FILE
from moldau.model.topology import Endpoint
from moldau.replica.peer_codec import METADATA_GROUP
from moldau.server.broker import BrokerServer
from moldau.server.config.schema import (
    GrpcConfig,
    HttpConfig,
    KafkaConfig,
    RaftConfig,
    ServerConfig,
)
from moldau.server.info import BrokerInfo
from moldau.server.machine import Machine
from moldau.server.storage import Storage
from moldau.testing.ports import free_ports
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

LOOPBACK = "127.0.0.1"


def config_of(directory: Path, **fields: Any) -> ServerConfig:
    free = Endpoint(LOOPBACK, 0)
    return ServerConfig(
        **{
            "data_dir": str(directory),
            "bootstrap": True,
            "kafka": KafkaConfig(addr=free),
            "raft": RaftConfig(addr=free),
            "http": HttpConfig(addr=free),
            "grpc": GrpcConfig(addr=free),
            **fields,
        }
    )


def fail(error: BaseException) -> None:
    raise AssertionError(f"the broker ended: {error!r}")


async def start(
    config: ServerConfig,
    *,
    on_storage_failure: Callable[[StorageError], None] = fail,
    on_internal_error: Callable[[BaseException], None] = fail,
) -> tuple[BrokerServer, BrokerInfo]:
    server = BrokerServer(
        config,
        Machine(),
        on_storage_failure=on_storage_failure,
        on_internal_error=on_internal_error,
        on_removed=lambda: fail(ConfigError("removed")),
    )
    try:
        async with asyncio.timeout(wait_seconds_max()):
            return server, await server.start()
    except BaseException:
        await server.abandon()
        raise


async def ask(info: BrokerInfo, path: str) -> Any:
    def call() -> Any:
        url = f"http://{info.http_addr}{path}"
        with urllib.request.urlopen(url, timeout=wait_seconds_max()) as answer:
            return json.load(answer)

    return await asyncio.to_thread(call)


def is_listening(address: Endpoint) -> bool:
    try:
        socket.create_connection((address.host, address.port), wait_seconds_max()).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_broker_on_free_ports_says_which_they_are_and_keeps_who_it_is(
    tmp_path: Path,
) -> None:
    server, info = await start(config_of(tmp_path))
    assert (info.broker_id, info.broker_count) == (1, 1)
    assert info.grpc_addr is not None
    addresses = (info.kafka_addr, info.raft_addr, info.http_addr, info.grpc_addr)
    assert len({0, *(address.port for address in addresses)}) == 5
    assert all(map(is_listening, addresses))
    assert (await ask(info, "/readyz"))["ready"]
    (me,) = (await ask(info, "/api/v1/topology"))["brokers"]
    assert me["kafka"] == [LOOPBACK, info.kafka_addr.port]
    assert me["raft"] == [LOOPBACK, info.raft_addr.port]
    assert me["grpc"] == [LOOPBACK, info.grpc_addr.port]
    await server.stop()
    assert not any(map(is_listening, addresses))
    server, again = await start(config_of(tmp_path))
    assert (again.broker_id, again.cluster_id) == (1, info.cluster_id)
    (me,) = (await ask(again, "/api/v1/topology"))["brokers"]
    assert me["epoch"] == 2
    await server.stop()


def test_a_disk_whose_free_space_cannot_be_read_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_to_read() -> int:
        raise OSError(errno.EIO, "Input/output error")

    storage = Storage.open(config_of(tmp_path), Machine())
    monkeypatch.setattr(storage._files, "free_bytes", fail_to_read)
    with pytest.raises(StorageError, match="cannot read the free space"):
        storage.free_bytes()
    assert storage.total_bytes() > 0
    storage.close()


BAD = StorageError("Input/output error")


async def test_a_new_topic_is_not_served_by_the_replicas_of_a_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = await start(config_of(tmp_path))
    metadata, partitions = server._metadata, server._partitions
    first, second = (TopicId(bytes([number] * 16)) for number in (1, 2))
    await metadata.submit(creation(1, topic_id=first))
    await until(lambda: is_led(partitions), "a leader")
    # It is busy with an earlier image.
    reconcile, may_go_on = partitions.reconcile, asyncio.Event()

    async def reconcile_later(image: Image) -> None:
        await may_go_on.wait()
        await reconcile(image)

    monkeypatch.setattr(partitions, "reconcile", reconcile_later)
    commands = (DeleteTopic(name="t"), creation(1, topic_id=second))
    changes = [asyncio.ensure_future(metadata.submit(command)) for command in commands]
    await until(lambda: metadata.image.topic_by_id(second) is not None, "the new topic")
    with pytest.raises(RefusedError) as refused:
        partitions.lead("t", 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    may_go_on.set()
    await asyncio.gather(*changes)
    await until(lambda: is_led(partitions), "the new leader")
    assert partitions.lead("t", 0).replica.topic_id == second
    await server.stop()


def is_led(partitions: Partitions) -> bool:
    hosted = partitions.get("t", 0)
    return hosted is not None and hosted.replica.is_ready


@pytest.mark.parametrize(
    ("error", "is_failure"),
    [
        (BAD, True),
        (BaseExceptionGroup("tasks", [BAD, ExceptionGroup("more", [BAD])]), True),
        (ExceptionGroup("tasks", [BAD, ValueError("no number")]), False),
        # Whoever writes has to expect a full disk.
        (DiskFullError("no space left"), False),
        (ValueError("no number"), False),
    ],
)
async def test_a_disk_that_fails_under_a_task_of_the_broker_is_not_a_bug(
    error: BaseException, is_failure: bool, tmp_path: Path
) -> None:
    failures: list[StorageError] = []
    defects: list[BaseException] = []
    server, _ = await start(
        config_of(tmp_path), on_storage_failure=failures.append, on_internal_error=defects.append
    )

    async def end() -> None:
        raise error

    server._tasks.run(end())
    server._tasks.run(end())
    await until(lambda: failures or len(defects) == 2, "somebody is told")
    await asyncio.sleep(0)
    assert (failures, defects) == (([BAD], []) if is_failure else ([], [error, error]))
    assert (tmp_path / "fence").exists() is is_failure
    await server.stop()


async def test_two_brokers_run_side_by_side(tmp_path: Path) -> None:
    first, one = await start(config_of(tmp_path / "1"))
    second, two = await start(
        config_of(tmp_path / "2", join_addr=one.http_addr, cluster_id=one.cluster_id)
    )
    assert (two.broker_id, two.cluster_id, two.broker_count) == (2, one.cluster_id, 2)
    await second.stop()
    await first.stop()


async def test_a_broker_of_an_older_version_gets_its_first_secret(tmp_path: Path) -> None:
    server, info = await start(config_of(tmp_path))
    await server.stop()
    path = tmp_path / SECRET_FILE
    before = path.read_bytes()
    path.unlink()
    server, again = await start(config_of(tmp_path))
    assert again.cluster_id == info.cluster_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() != before
    await server.stop()


async def test_a_member_without_the_secret_does_not_start(tmp_path: Path) -> None:
    first, one = await start(config_of(tmp_path / "1"))
    raft = RaftConfig(addr=Endpoint(LOOPBACK, free_ports(1)[0]))
    second, _ = await start(config_of(tmp_path / "2", join_addr=one.http_addr, raft=raft))
    await second.stop()
    given, kept = tmp_path / "1" / SECRET_FILE, tmp_path / "2" / SECRET_FILE
    kept.unlink()
    with pytest.raises(ConfigError, match=r"has no file cluster\.secret") as caught:
        await start(config_of(tmp_path / "2", join_addr=one.http_addr, raft=raft))
    assert "moldau cluster secret create" in caught.value.hint
    # There is no way around it: nothing was written, and it can be given.
    assert not kept.exists()
    shutil.copy(given, kept)
    second, _ = await start(config_of(tmp_path / "2", raft=raft))
    await second.stop()
    await first.stop()


@pytest.mark.parametrize("key", ["kafka", "raft", "http", "grpc"])
async def test_a_taken_port_leaves_a_directory_that_can_be_used(tmp_path: Path, key: str) -> None:
    kinds: dict[str, Callable[..., Any]] = {
        "kafka": KafkaConfig,
        "raft": RaftConfig,
        "http": HttpConfig,
        "grpc": GrpcConfig,
    }
    with socket.create_server((LOOPBACK, 0)) as taken:
        address = Endpoint(LOOPBACK, taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"\({key}\.addr\)") as caught:
            await start(config_of(tmp_path, **{key: kinds[key](addr=address)}))
    assert caught.value.hint
    # Nothing was promised to anybody: it may still become what it is told to be.
    with pytest.raises(ConfigError, match="join"):
        await start_to_join(tmp_path)


async def test_a_broker_without_grpc_reports_no_address_of_it(tmp_path: Path) -> None:
    server, info = await start(config_of(tmp_path, grpc=GrpcConfig(addr=None)))
    assert info.grpc_addr is None
    (me,) = (await ask(info, "/api/v1/topology"))["brokers"]
    assert me["grpc"] is None
    await server.stop()


async def test_one_port_cannot_be_two_listeners(tmp_path: Path) -> None:
    address = Endpoint(LOOPBACK, free_ports(1)[0])
    settings = {"kafka": KafkaConfig(addr=address), "http": HttpConfig(addr=address)}
    with pytest.raises(ConfigError, match=r"kafka\.addr and http\.addr are both"):
        await start(config_of(tmp_path, **settings))


async def start_to_join(directory: Path) -> None:
    """A join that nobody answers, given up when it has been asked for."""
    with socket.create_server((LOOPBACK, 0)) as silent:
        config = config_of(directory, join_addr=Endpoint(LOOPBACK, silent.getsockname()[1]))
        starting = asyncio.create_task(start(config))
        await until(
            lambda: starting.done() or select.select([silent], [], [], 0)[0], "it asks to join"
        )
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            raise ConfigError("it tries to join") from None


async def test_a_start_that_was_ended_while_it_joined_frees_the_directory_and_the_ports(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="tries to join"):
        await start_to_join(tmp_path)
    storage = Storage.open(config_of(tmp_path), Machine())
    assert storage.identity is not None
    assert storage.identity.broker_id is None
    storage.close()


async def killed_before_the_first_record(directory: Path) -> None:
    storage = Storage.open(config_of(directory), Machine())
    storage.become(
        Identity(
            broker_id=BrokerId(1),
            cluster_id="c",
            directory_id="d",
            metadata_voters=(BrokerId(1),),
            is_bootstrapping=True,
        )
    )
    storage.close()


async def killed_after_its_first_vote(directory: Path) -> None:
    await killed_before_the_first_record(directory)
    storage = Storage.open(config_of(directory), Machine())
    storage.votes.record({METADATA_GROUP.name: (Epoch(0), BrokerId(1))})
    storage.close()


async def killed_before_it_was_anybody(directory: Path) -> None:
    Storage.open(config_of(directory), Machine()).close()


async def killed_while_it_ran(directory: Path) -> None:
    server, _ = await start(config_of(directory, cluster_id="c"))
    await server.abandon()


@pytest.mark.parametrize(
    "crash",
    [
        killed_before_it_was_anybody,
        killed_before_the_first_record,
        killed_after_its_first_vote,
        killed_while_it_ran,
    ],
)
async def test_a_broker_that_was_killed_during_the_bootstrap_bootstraps_the_same_cluster(
    tmp_path: Path, crash: Callable[[Path], Any]
) -> None:
    await crash(tmp_path)
    server, info = await start(config_of(tmp_path, cluster_id="c"))
    assert (info.broker_id, info.broker_count) == (1, 1)
    assert info.cluster_id.partition(".")[0] == "c"
    await server.stop()


async def test_no_log_is_made_before_the_directory_has_an_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Storage, identity: Identity) -> None:
        raise MoldauError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "become", die)
        with pytest.raises(MoldauError, match="killed"):
            await start(config_of(tmp_path))
    # With a log, it would belong to nobody and be refused.
    try:
        server, _ = await start(config_of(tmp_path))
    except CorruptionError as error:
        raise AssertionError from error
    await server.stop()
