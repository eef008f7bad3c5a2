"""A registration is made at each start, over HTTP if it must be, and looked after to the end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from http_cluster import SECRET, FakeCluster, Served, served
from moldau.control.join_service import JoinService
from moldau.log.secret_file import ClusterSecret
from moldau.metadata.commands import Command, CreateCluster, RegisterBroker
from moldau.metadata.image import EMPTY_IMAGE, Broker, Image
from moldau.metadata.records import BrokerRegistered, MetadataRecord
from moldau.metadata.snapshot import encode_image
from moldau.model.errors import ConfigError, ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.topology import NO_BROKER, Endpoint, JoinRequest
from moldau.raft.membership import Members
from moldau.server import registration
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Machine
from moldau.server.membership import ClusterMembership, Endpoints
from moldau.server.registration import Registration, SupersededError
from moldau.testing.waiting import until, wait_seconds_max

pytestmark = pytest.mark.inprocess

ONE, TWO = BrokerId(1), BrokerId(2)
ENTRY = ClusterMembership(
    broker_id=TWO,
    cluster_id="c",
    directory_id="d",
    process="now",
    endpoints=Endpoints(
        kafka=Endpoint("h", 1), raft=Endpoint("h", 2), http=Endpoint("127.0.0.1", 3)
    ),
    metadata_members=Members((ONE,), (TWO,)),
    is_bootstrap_broker=False,
    image=EMPTY_IMAGE,
    epoch=0,
    secret=ClusterSecret(SECRET),
)


ELSEWHERE = Endpoint("elsewhere", 2)


def image_of(
    process: str,
    epoch: int,
    *,
    http: Endpoint | None = None,
    raft: Endpoint = ENTRY.endpoints.raft,
    version: int = 9,
    machine: str | None = None,
) -> Image:
    """A cluster of two, this broker registered by that process."""
    return Image(
        cluster_id="c",
        version=version,
        brokers={
            ONE: Broker(id=ONE, host="h", port=1, http=http),
            TWO: Broker(
                id=TWO,
                host="h",
                port=1,
                incarnation="d",
                process=process,
                epoch=epoch,
                raft=raft,
                http=Endpoint("127.0.0.1", 3),
                machine=machine,
            ),
        },
    )


class FakeStore:
    """Answers each submit with the next of `outcomes`; after the last, always with that."""

    def __init__(self, image: Image, *outcomes: RefusedError | Image) -> None:
        self.image = image
        self.known = image
        self.outcomes = list(outcomes)
        self.leader = NO_BROKER
        self.submitted: list[Command] = []

    def forecast(self) -> Image:
        return self.known

    async def submit(
        self,
        command: Command,
        *,
        seconds_max: float = 0,
        on_decided: Callable[[list[MetadataRecord]], None] = lambda _: None,
    ) -> list[MetadataRecord]:
        await asyncio.sleep(0)
        self.submitted.append(command)
        outcome = self.outcomes[0]
        if len(self.outcomes) > 1:
            del self.outcomes[0]
        if isinstance(outcome, RefusedError):
            raise outcome
        self.image = outcome
        if isinstance(command, RegisterBroker):
            me = outcome.brokers[TWO]
            on_decided(
                [
                    BrokerRegistered(
                        id=TWO, host="h", port=1, incarnation="d", process="now", epoch=me.epoch
                    )
                ]
            )
        return []


class World:
    """A registration, and what it told."""

    def __init__(
        self,
        store: FakeStore,
        *,
        join: int | None = None,
        entry: ClusterMembership = ENTRY,
        machine: str | None = None,
    ) -> None:
        self.store = store
        self.images: list[Image] = []
        self.epochs: list[int] = []
        self.removed = 0
        self.cut_off = False
        metadata: Any = store
        self.registration = Registration(
            ServerConfig(
                join_addr=None if join is None else Endpoint("127.0.0.1", join), machine=machine
            ),
            entry,
            metadata,
            Machine(),
            on_member_image=self.images.append,
            on_epoch=self.epochs.append,
            is_cut_off=lambda: self.cut_off,
            on_removed=self._on_removed,
        )

    def _on_removed(self) -> None:
        self.removed += 1

    def make(self) -> None:
        async def run() -> None:
            async with asyncio.timeout(wait_seconds_max()):
                await self.registration.register()

        asyncio.run(run())

    def keep_until(self, holds: Callable[[], bool]) -> None:
        """Look after it; fails if it does not come to that. Raises what it ends with."""

        async def run() -> None:
            keeping = asyncio.create_task(self.registration.run())
            await until(lambda: holds() or keeping.done(), "it came to that")
            keeping.cancel()
            (result,) = await asyncio.gather(keeping, return_exceptions=True)
            if not isinstance(result, asyncio.CancelledError):
                assert isinstance(result, BaseException)
                raise result

        asyncio.run(run())


@pytest.fixture
def cluster() -> FakeCluster:
    """Knows this broker by its current process, in epoch 4."""
    found = FakeCluster()
    found.image = encode_image(image_of("now", 4))
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(registration, "_LOST_SECONDS", 0.03)
    monkeypatch.setattr(registration, "_LACKING_SECONDS", 0.03)


TIMED_OUT = RefusedError(ErrorCode.REQUEST_TIMED_OUT, "nobody leads")


def test_a_start_registers_over_the_peers() -> None:
    world = World(FakeStore(image_of("before", 3), image_of("now", 4)))
    world.make()
    (command,) = world.store.submitted
    assert isinstance(command, RegisterBroker)
    assert (command.id, command.incarnation, command.process) == (2, "d", "now")
    assert (command.raft, command.http) == (ENTRY.endpoints.raft, ENTRY.endpoints.http)
    assert world.epochs == [4]
    assert world.registration.epoch == 4


def test_a_bootstrap_broker_names_the_cluster_first_and_only_once() -> None:
    founder = replace(ENTRY, is_bootstrap_broker=True)
    world = World(FakeStore(EMPTY_IMAGE, image_of("now", 1)), entry=founder)
    world.make()
    assert [type(command) for command in world.store.submitted] == [CreateCluster, RegisterBroker]
    again = World(FakeStore(image_of("before", 1), image_of("now", 2)), entry=founder)
    again.make()
    assert [type(command) for command in again.store.submitted] == [RegisterBroker]


def test_a_refusal_ends_the_start_in_the_words_of_the_cluster() -> None:
    refusal = RefusedError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Broker 2 was removed")
    with pytest.raises(ConfigError, match=r"rejected this broker: .*Broker 2 was removed"):
        World(FakeStore(EMPTY_IMAGE, refusal)).make()


def test_one_that_reaches_no_leader_asks_a_member_over_http(cluster: FakeCluster) -> None:
    store = FakeStore(EMPTY_IMAGE, TIMED_OUT, image_of("now", 4))
    with served(cluster) as member:
        world = World(store, join=member.port)
        world.make()
    (asked,) = cluster.asked
    assert isinstance(asked, JoinRequest)
    assert (asked.broker_id, asked.cluster_id) == (2, "c")
    assert (asked.incarnation, asked.process) == ("d", "now")
    # Its own log knew neither where the others are by now, nor its last registration.
    assert world.images == [image_of("now", 4)]
    assert world.epochs[0] == 4


def test_one_with_a_new_address_says_so_before_it_asks_the_peers(cluster: FakeCluster) -> None:
    # A peer answers where it knows the asker to be: there, nobody listens any more.
    with served(cluster) as member:
        store = FakeStore(image_of("before", 3, raft=ELSEWHERE), image_of("now", 4))
        world = World(store, join=member.port)
        world.make()
    assert len(cluster.asked) == 1
    assert len(world.store.submitted) == 1


def test_members_are_found_in_the_log_if_none_is_configured(cluster: FakeCluster) -> None:
    with served(cluster) as member:
        store = FakeStore(EMPTY_IMAGE, TIMED_OUT, image_of("now", 4))
        store.known = image_of("before", 3, http=Endpoint("127.0.0.1", member.port))
        world = World(store)
        world.make()
    assert len(cluster.asked) == 1
    assert len(world.images) == 1


def test_a_removed_broker_does_not_wait_for_a_cluster_that_is_not_its_own_any_more(
    cluster: FakeCluster,
) -> None:
    cluster.failure = RefusedError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Broker 2 was removed from this cluster"
    )
    with served(cluster) as member, pytest.raises(ConfigError, match="was removed from this"):
        World(FakeStore(EMPTY_IMAGE, TIMED_OUT), join=member.port).make()


@pytest.mark.parametrize(
    "failure",
    [
        RefusedError(ErrorCode.REQUEST_TIMED_OUT, "no majority"),
        RefusedError(ErrorCode.BROKER_NOT_AVAILABLE, "starting"),
        # Somebody else has that address by now.
        RefusedError(ErrorCode.INCONSISTENT_CLUSTER_ID, "this is cluster x"),
        RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, "a defect"),
    ],
    ids=lambda failure: failure.code.name,
)
def test_what_a_member_cannot_do_just_now_is_tried_again(
    cluster: FakeCluster, failure: RefusedError
) -> None:
    cluster.failure = failure
    with served(cluster) as member:
        store = FakeStore(EMPTY_IMAGE, TIMED_OUT, TIMED_OUT, TIMED_OUT, image_of("now", 4))
        World(store, join=member.port).make()
    assert len(cluster.asked) == 3


def test_an_earlier_start_is_not_another_process() -> None:
    world = World(FakeStore(EMPTY_IMAGE))
    world.registration.check(image_of("before", 7))
    assert world.registration.epoch == 0


def test_a_later_registration_as_this_broker_supersedes_it() -> None:
    world = World(FakeStore(EMPTY_IMAGE))
    world.registration.check(image_of("now", 4))
    # An old image changes nothing.
    world.registration.check(image_of("before", 3))
    world.registration.check(image_of("now", 4))
    with pytest.raises(SupersededError, match="elsewhere:2, with a copy of this data directory"):
        world.registration.check(image_of("later", 5, raft=ELSEWHERE))


def test_an_earlier_process_that_is_registered_late_is_overridden() -> None:
    # What it asked for, before it was killed, waited for a leader; and nobody else is there now.
    world = World(FakeStore(image_of("now", 4), image_of("now", 6)))
    world.registration.check(image_of("now", 4))
    world.registration.check(image_of("killed", 5))
    world.keep_until(lambda: world.epochs == [6])
    world.registration.check(world.store.image)
    assert world.registration.epoch == 6
    assert not world.registration._is_overridden


def test_a_machine_that_an_earlier_version_did_not_store_is_registered_later() -> None:
    # The first leader is of an earlier version, and so is the one after it.
    old, new = image_of("now", 4), image_of("now", 5, machine="m")
    world = World(FakeStore(EMPTY_IMAGE, old, old, new), machine="m")
    world.make()

    def is_known() -> bool:
        world.registration.check(world.store.image)
        return world.epochs == [4, 4, 5]

    world.keep_until(is_known)
    assert {one.machine for one in world.store.submitted if isinstance(one, RegisterBroker)} == {
        "m"
    }
    assert not world.registration._lacks_machine


def test_a_new_leader_gets_the_registration_that_its_snapshot_may_lack() -> None:
    known = image_of("now", 4, machine="m")
    known = replace(known, brokers={TWO: known.brokers[TWO]})
    world = World(FakeStore(EMPTY_IMAGE, known), machine="m")
    world.store.leader = 1
    world.make()
    first = len(world.store.submitted)
    looks = 0

    def looked_often() -> bool:
        nonlocal looks
        looks += 1
        return looks > 20

    world.keep_until(looked_often)
    assert len(world.store.submitted) == first
    world.store.outcomes = [RefusedError(ErrorCode.NOT_CONTROLLER), known]
    world.store.leader = NO_BROKER
    world.keep_until(lambda: looked_often() and looks > 40)
    assert len(world.store.submitted) == first
    world.store.leader = 2
    # Refused once, then taken, and not sent again.
    world.keep_until(lambda: looked_often() and looks > 80)
    assert len(world.store.submitted) == first + 2


def test_machines_of_others_that_it_lacks_are_asked_for() -> None:
    here, asked = image_of("now", 4, machine="m"), (ONE,)
    world = World(FakeStore(EMPTY_IMAGE, here), machine="m")
    world.make()
    world.registration.check(here)
    world.keep_until(
        lambda: any(
            isinstance(one, RegisterBroker) and one.lacking == asked
            for one in world.store.submitted
        )
    )


def shown(
    member: Served, epoch: int, *, raft: Endpoint = ENTRY.endpoints.raft, version: int = 9
) -> None:
    """What the member knows of this broker."""
    image = image_of("another", epoch, raft=raft, version=version)
    member.cluster.queried_image = encode_image(image)


def running(member: Served) -> World:
    world = World(FakeStore(image_of("now", 4)), join=member.port)
    world.registration.check(image_of("now", 4))
    return world


def test_no_peer_is_asked_while_the_cluster_responds(cluster: FakeCluster) -> None:
    looks = 0

    with served(cluster) as member:
        world = running(member)

        def is_cut_off() -> bool:
            nonlocal looks
            looks += 1
            # Now and then, as an election takes it: never for long.
            return looks % 3 == 0

        world.registration._is_cut_off = is_cut_off
        world.keep_until(lambda: looks > 20)
    assert cluster.asked == []


def test_one_that_is_cut_off_asks_how_it_stands_and_believes_it(cluster: FakeCluster) -> None:
    with served(cluster) as member:
        shown(member, 4)
        world = running(member)
        world.cut_off = True
        world.keep_until(lambda: len(world.images) > 1)
    assert world.images[0] == image_of("now", 4)
    assert set(world.epochs) == {4}
    assert world.removed == 0


def test_one_that_was_removed_while_it_ran_learns_of_it(cluster: FakeCluster) -> None:
    cluster.failure = None
    with served(cluster) as member:
        world = running(member)
        world.cut_off = True

        async def refuse(request: JoinRequest, join_token_id: str) -> None:
            if request.is_query:
                raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, "not a member")
            raise RefusedError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "Broker 2 was removed")

        cluster.join = refuse  # type: ignore[method-assign,assignment]
        world.keep_until(lambda: world.removed > 0)


FORGED = pytest.mark.parametrize(
    "code",
    [
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.INVALID_REGISTRATION,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
    ids=lambda code: code.name,
)


def forge(monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> Callable[[], int]:
    """The process at the address of a member refuses, without any proof; returns how often."""
    asked = 0

    async def join(self: JoinService, proven: object) -> None:
        nonlocal asked
        asked += 1
        raise RefusedError(code, "Broker 2 was removed")

    monkeypatch.setattr(JoinService, "join", join)
    return lambda: asked


@FORGED
def test_a_running_broker_does_not_end_because_an_unproven_member_says_that_it_was_removed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    asked = forge(monkeypatch, code)
    with served(cluster) as member:
        world = running(member)
        world.cut_off = True
        # Two requests each time: how it stands, and the registration.
        world.keep_until(lambda: asked() >= 6)
    assert (world.removed, world.images, world.epochs) == (0, [], [])


@FORGED
def test_a_start_does_not_fail_because_an_unproven_member_rejects_it(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, code: ErrorCode
) -> None:
    asked = forge(monkeypatch, code)
    with served(cluster) as member:
        store = FakeStore(EMPTY_IMAGE, TIMED_OUT, TIMED_OUT, image_of("now", 4))
        World(store, join=member.port).make()
    assert asked() == 2


def test_one_that_was_superseded_while_it_was_cut_off_does_not_register_again(
    cluster: FakeCluster,
) -> None:
    with served(cluster) as member:
        shown(member, 5, raft=ELSEWHERE)
        world = running(member)
        world.cut_off = True
        with pytest.raises(SupersededError):
            world.keep_until(lambda: False)
    assert cluster.asked == []


def test_no_response_is_not_a_reason_to_end(cluster: FakeCluster) -> None:
    with served(cluster) as member:
        world = running(member)
    world.cut_off = True
    rounds = 0
    members = world.registration._members

    def counted() -> Any:
        nonlocal rounds
        rounds += 1
        return members()

    world.registration._members = counted  # type: ignore[method-assign]
    world.keep_until(lambda: rounds > 3)
    assert (world.removed, world.images) == (0, [])
