"""Coordinators see the topics of the current image, and hear when they changed."""

from msgspec.structs import replace

from moldau.coordination.group_topics import ImageTopics
from moldau.metadata.image import EMPTY_IMAGE, Partition, Topic
from moldau.model.ids import BrokerId, PartitionIndex, TopicId


def topic(name, partitions=1, internal=False):
    parts = tuple(Partition(PartitionIndex(n), (BrokerId(1),)) for n in range(partitions))
    topic_id = TopicId(name.encode().ljust(16))
    return Topic(name=name, topic_id=topic_id, partitions=parts, internal=internal)


class World:
    def __init__(self):
        self.image = EMPTY_IMAGE
        self.topics = ImageTopics(lambda: self.image)

    def put(self, one):
        self.image = replace(self.image, topics={**self.image.topics, one.name: one})


def test_the_version_changes_with_the_topics_and_with_nothing_else():
    world = World()
    before = world.topics.version
    world.image = replace(world.image, version=7)
    assert world.topics.version == before
    world.put(topic("a"))
    assert world.topics.version != before
    assert world.topics.version == world.topics.version


def test_topics_are_returned_with_their_size_and_internal_ones_match_no_pattern():
    world = World()
    world.put(topic("a", 3))
    world.put(topic("__consumer_offsets", 1, internal=True))
    assert world.topics.topic("a") == (b"a".ljust(16), 3)
    assert world.topics.topic("b") is None
    assert world.topics.names() == ("a",)
    world.put(topic("b"))
    assert world.topics.names() == ("a", "b")
