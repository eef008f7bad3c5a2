"""What consumers are told to poll: the same number for the same thing, on every broker."""

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import Command, CreateTopic, RegisterBroker
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Endpoint, Image, Topic
from moldau.metadata.leaders import NO_LEADER, Leader
from moldau.model.ids import BrokerId, Epoch, TopicId
from moldau.queues.assignments import Assignments
from moldau.testing.replicas import ManualClock


def image_of(*commands: Command) -> Image:
    image = EMPTY_IMAGE
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def create(name: str, number: int) -> CreateTopic:
    topic_id = TopicId(number.to_bytes(16, "big"))
    return CreateTopic(name=name, topic_id=topic_id, partitions=2, replication_factor=1)


IMAGE = image_of(
    RegisterBroker(id=BrokerId(1), host="h", port=1, incarnation="a", grpc=Endpoint("one", 8000)),
    RegisterBroker(id=BrokerId(2), host="h", port=2, incarnation="b"),
    create("a", 1),
    create("b", 2),
)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leaders: dict[tuple[str, int], int] = {}
        self.assignments = Assignments(
            clock=self.clock, image=lambda: IMAGE, leader_of=self._leader_of
        )

    def _leader_of(self, topic: Topic, index: int) -> Leader:
        broker = self.leaders.get((topic.name, index))
        return NO_LEADER if broker is None else Leader(BrokerId(broker), Epoch(1))


def test_all_partitions_of_topics_with_their_leaders() -> None:
    world = World()
    world.leaders = {("a", 0): 1, ("a", 1): 2}
    made = world.assignments.of_topics(("a", "b", "gone"))
    assert [(one.topic, one.partition, one.leader, one.address) for one in made.partitions] == [
        ("a", 0, 1, "one:8000"),
        # It has no gRPC.
        ("a", 1, 2, ""),
        ("b", 0, -1, ""),
        ("b", 1, -1, ""),
    ]


def test_the_number_identifies_assignments_whichever_broker_made_them() -> None:
    one, other = World(), World()
    one.leaders = other.leaders = {("a", 0): 1}
    assert one.assignments.of_topics(("a",)) == other.assignments.of_topics(("a",))
    before = one.assignments.of_topics(("a",)).epoch
    assert before > 0
    assert one.assignments.of_topics(("a", "b")).epoch != before
    # A moment later, with another leader.
    one.leaders = {("a", 0): 2}
    one.clock.steady += 1
    assert one.assignments.of_topics(("a",)).epoch not in (0, before)


def test_what_was_just_made_is_not_made_again() -> None:
    world = World()
    made = world.assignments.of_topics(("a",))
    assert world.assignments.of_topics(("a",)) is made
    world.clock.steady += 1
    assert world.assignments.of_topics(("a",)) is not made


def test_single_partitions_in_order_and_only_those_that_exist() -> None:
    world = World()
    world.leaders = {("b", 1): 1}
    ids = {name: IMAGE.topics[name].topic_id for name in ("a", "b")}
    made = world.assignments.of_partitions(
        {
            ids["b"]: frozenset({1, 0, 7}),
            ids["a"]: frozenset({1}),
            TopicId(b"x" * 16): frozenset({0}),
        }
    )
    assert [(one.topic, one.partition, one.leader) for one in made.partitions] == [
        ("a", 1, -1),
        ("b", 0, -1),
        ("b", 1, 1),
    ]
    assert world.assignments.of_partitions({}).partitions == ()
