"""A consumer's settings are checked when they are written down."""

import pytest

from moldau import ConsumerConfig, InvalidArgumentError, OffsetResetPolicy


@pytest.mark.parametrize(
    "wrong",
    [
        {"auto_offset_reset": "middle"},
        {"isolation_level": "dirty"},
        {"group_protocol": "old"},
        {"max_poll_records": 0},
        {"group_id": ""},
    ],
)
def test_what_cannot_work_is_refused_with_a_hint(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ConsumerConfig(**wrong)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_policy_may_be_written_as_text() -> None:
    for policy in (OffsetResetPolicy.LATEST, "latest"):
        assert ConsumerConfig(auto_offset_reset=policy).settings()["auto.offset.reset"] == "latest"


def test_nothing_is_committed_without_a_group() -> None:
    assert ConsumerConfig().settings()["enable.auto.commit"] is False
    assert ConsumerConfig(group_id="g").settings()["enable.auto.commit"] is True


def test_own_properties_win() -> None:
    assert ConsumerConfig(extra={"client.id": "me"}).settings()["client.id"] == "me"


def test_a_session_ends_no_later_than_the_time_between_polls() -> None:
    classic = ConsumerConfig(max_poll_interval_ms=10_000).settings()
    assert classic["max.poll.interval.ms"] == classic["session.timeout.ms"] == 10_000
    # In the next generation brokers say how long a session is.
    assigned = ConsumerConfig(max_poll_interval_ms=2_000, group_protocol="consumer").settings()
    assert assigned["max.poll.interval.ms"] == 2_000
    assert "session.timeout.ms" not in assigned
