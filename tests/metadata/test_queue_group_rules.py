"""Queue groups: made and changed by one command, within bounds, and forgotten by another."""

import pytest

from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    Command,
    CreateTopic,
    DefineQueueGroup,
    DeleteTopic,
    DropQueueGroup,
    RegisterBroker,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.metadata.queue_groups import QueueSettings
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, TopicId
from moldau.model.queue_limits import ATTEMPTS_MAX, BACKOFF_MS_MAX, VISIBILITY_MS_MAX


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    return caught.value


def create(name: str, number: int, *, internal: bool = False) -> CreateTopic:
    return CreateTopic(
        name=name,
        topic_id=TopicId(number.to_bytes(16, "big")),
        partitions=1,
        replication_factor=1,
        internal=internal,
    )


def register(number: int, feature_level_max: int = 2) -> RegisterBroker:
    return RegisterBroker(
        id=BrokerId(number),
        host="h",
        port=number,
        incarnation=f"dir-{number}",
        feature_level_max=feature_level_max,
    )


@pytest.fixture
def image() -> Image:
    return after(EMPTY_IMAGE, register(1), create("a", 1), create("b", 2))


def test_a_new_group_has_defaults_and_its_own_dead_letter_topic(image: Image) -> None:
    image = after(image, DefineQueueGroup(name="q", topics=("b", "a", "b"), attempts_max=3))
    group = image.queue_groups["q"]
    assert group.topics == ("a", "b")
    assert group.settings == QueueSettings(dead_letter_topic="q.dead", attempts_max=3)


def test_who_comes_later_adds_topics_and_changes_only_what_is_given(image: Image) -> None:
    image = after(
        image,
        DefineQueueGroup(name="q", topics=("a",), visibility_ms=7, starts_at_end=True),
        DefineQueueGroup(name="q", topics=("b",), backoff_ms=70_000),
    )
    group = image.queue_groups["q"]
    assert group.topics == ("a", "b")
    assert group.settings == QueueSettings(
        dead_letter_topic="q.dead",
        visibility_ms=7,
        backoff_ms=70_000,
        # It was lower, and was not asked to stay.
        backoff_ms_max=70_000,
        starts_at_end=True,
    )
    assert decide(DefineQueueGroup(name="q", topics=("a",)), image) == []


def test_a_deleted_topic_leaves_the_group(image: Image) -> None:
    image = after(image, DefineQueueGroup(name="q", topics=("a", "b")), DeleteTopic(name="a"))
    assert image.queue_groups["q"].topics == ("b",)


def test_a_dropped_group_is_gone_and_cannot_be_dropped_again(image: Image) -> None:
    image = after(image, DefineQueueGroup(name="q"), DropQueueGroup(name="q"))
    assert not image.queue_groups
    error = refused(image, DropQueueGroup(name="q"))
    assert error.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"topics": ("missing",)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topics": ("__consumer_offsets",)}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topics": ("a",), "dead_letter_topic": "a"}, ErrorCode.INVALID_REQUEST),
        ({"dead_letter_topic": "x/y"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"dead_letter_topic": "__consumer_offsets"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"visibility_ms": 0}, ErrorCode.INVALID_CONFIG),
        ({"visibility_ms": VISIBILITY_MS_MAX + 1}, ErrorCode.INVALID_CONFIG),
        ({"attempts_max": 0}, ErrorCode.INVALID_CONFIG),
        ({"attempts_max": ATTEMPTS_MAX + 1}, ErrorCode.INVALID_CONFIG),
        ({"backoff_ms": -1}, ErrorCode.INVALID_CONFIG),
        ({"backoff_ms": 2, "backoff_ms_max": 1}, ErrorCode.INVALID_CONFIG),
        ({"backoff_ms_max": BACKOFF_MS_MAX + 1}, ErrorCode.INVALID_CONFIG),
        ({"name": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"name": "x" * 256, "dead_letter_topic": "d"}, ErrorCode.INVALID_GROUP_ID),
        # Its dead-letter topic would have no proper name.
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_is_out_of_bounds_is_refused(
    image: Image, given: dict[str, object], code: ErrorCode
) -> None:
    image = after(image, create("__consumer_offsets", 3, internal=True))
    command = DefineQueueGroup(**{"name": "q", **given})  # type: ignore[arg-type]
    assert refused(image, command).code is code


def test_a_group_has_a_hundred_topics_at_most(image: Image) -> None:
    image = after(image, *(create(f"t{number}", number) for number in range(10, 111)))
    names = tuple(f"t{number}" for number in range(10, 111))
    assert refused(image, DefineQueueGroup(name="q", topics=names)).code is (
        ErrorCode.INVALID_REQUEST
    )
    image = after(image, DefineQueueGroup(name="q", topics=names[:100]))
    assert refused(image, DefineQueueGroup(name="q", topics=names[100:])).code is (
        ErrorCode.INVALID_REQUEST
    )


def test_groups_wait_until_every_broker_can_read_them_and_then_bind_later_ones(
    image: Image,
) -> None:
    old = after(image, register(2, feature_level_max=1))
    error = refused(old, DefineQueueGroup(name="q"))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "Broker 2" in error.message
    image = after(image, DefineQueueGroup(name="q"))
    assert image.feature_level == 2
    assert refused(image, register(2, feature_level_max=1)).code is ErrorCode.UNSUPPORTED_VERSION


def test_a_group_that_is_not_the_expected_one_is_not_changed(image: Image) -> None:
    """What was allowed for one group must not be done to another of the same name."""
    new = DefineQueueGroup(name="q", topics=("a",), expected=None)
    image = after(image, new)
    known = image.queue_groups["q"]
    assert refused(image, new).code is ErrorCode.INVALID_UPDATE_VERSION
    change = DefineQueueGroup(name="q", topics=("a",), visibility_ms=7, expected=known)
    other = after(image, DefineQueueGroup(name="q", topics=("b",)))
    assert refused(other, change).code is ErrorCode.INVALID_UPDATE_VERSION
    gone = after(image, DropQueueGroup(name="q"))
    assert refused(gone, change).code is ErrorCode.INVALID_UPDATE_VERSION
    assert after(image, change).queue_groups["q"].settings.visibility_ms == 7
