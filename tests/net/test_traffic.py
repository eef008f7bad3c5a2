"""What is counted of a client: cheap, and bounded by what it says."""

from moldau.net.traffic import TEXT_CHARS_MAX, Traffic


def test_what_a_client_says_is_kept_in_part() -> None:
    traffic = Traffic(5.0)
    traffic.called("x" * 30_000)
    traffic.runs("y" * 30_000, "z" * 30_000)
    kept = (traffic.client_id or "", traffic.software, traffic.version)
    assert [len(one) for one in kept] == [TEXT_CHARS_MAX] * 3
    traffic.called(None)
    assert traffic.client_id is None


def test_the_time_of_mutes_adds_up_and_counts_while_one_lasts() -> None:
    traffic = Traffic(0.0)
    assert traffic.throttled_seconds(9.0) == 0
    traffic.mute(10.0)
    traffic.mute(11.0)
    assert traffic.throttled_seconds(12.0) == 2
    traffic.unmute(13.0)
    assert traffic.throttled_seconds(20.0) == 3
    traffic.mute(20.0)
    traffic.unmute(21.0)
    assert traffic.throttled_seconds(30.0) == 4
