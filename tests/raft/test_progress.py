"""What is in flight to a member is bounded, and given back by its answers."""

from moldau.model.ids import RaftIndex
from moldau.raft.config import RaftConfig
from moldau.raft.progress import FOREVER, Progress, ProgressState

CONFIG = RaftConfig(inflight_bytes_max=100, inflight_count_max=3)


def replicating() -> Progress:
    progress = Progress(next_index=RaftIndex(5), end=RaftIndex(5), now=0)
    progress.acknowledged(RaftIndex(5), RaftIndex(5), 500)
    progress.become_replicate()
    return progress


def test_bytes_in_flight_take_up_the_room() -> None:
    progress = replicating()
    progress.sent(RaftIndex(6), 60, 500)
    assert progress.room(CONFIG) == 40
    progress.sent(RaftIndex(7), 50, 500)
    assert progress.room(CONFIG) < 0
    progress.acknowledged(RaftIndex(6), RaftIndex(6), 600)
    assert progress.room(CONFIG) == 50


def test_messages_in_flight_are_counted_too() -> None:
    progress = replicating()
    for end in (6, 7, 8):
        progress.sent(RaftIndex(end), 1, 500)
    assert progress.room(CONFIG) == 0


def test_a_deadline_runs_only_while_something_is_in_flight() -> None:
    progress = replicating()
    assert progress.deadline == FOREVER
    progress.sent(RaftIndex(6), 1, 500)
    progress.sent(RaftIndex(7), 1, 700)
    assert progress.deadline == 500
    progress.acknowledged(RaftIndex(6), RaftIndex(5), 900)
    assert progress.deadline == 900
    progress.acknowledged(RaftIndex(7), RaftIndex(5), 1000)
    assert progress.deadline == FOREVER


def test_an_answer_that_brings_nothing_does_not_put_the_deadline_off() -> None:
    progress = replicating()
    progress.sent(RaftIndex(6), 1, 500)
    progress.acknowledged(RaftIndex(5), RaftIndex(5), 900)
    assert progress.deadline == 500


def test_old_answers_take_nothing_back() -> None:
    progress = replicating()
    progress.acknowledged(RaftIndex(9), RaftIndex(8), 0)
    progress.acknowledged(RaftIndex(6), RaftIndex(5), 0)
    assert (progress.received, progress.match) == (9, 8)


def test_a_probe_forgets_what_was_in_flight() -> None:
    progress = replicating()
    progress.sent(RaftIndex(6), 60, 500)
    progress.become_probe(RaftIndex(5))
    assert progress.state is ProgressState.PROBE
    assert (progress.next, progress.room(CONFIG), progress.deadline) == (5, 100, FOREVER)


def test_under_load_a_member_is_judged_by_where_the_leader_was_at_its_last_answer() -> None:
    progress = replicating()
    progress.note_caught_up(RaftIndex(5), 10)
    assert progress.caught_up_at == 10
    progress.note_caught_up(RaftIndex(9), 20)
    assert progress.caught_up_at == 10
    progress.acknowledged(RaftIndex(9), RaftIndex(9), 0)
    progress.note_caught_up(RaftIndex(15), 30)
    assert progress.caught_up_at == 20
    progress.note_caught_up(RaftIndex(20), 40)
    assert progress.caught_up_at == 20


def test_a_new_leader_counts_nobody_as_caught_up_before_it_has_the_entries() -> None:
    progress = Progress(next_index=RaftIndex(500), end=RaftIndex(500), now=1_000)
    progress.note_caught_up(RaftIndex(501), 1_100)
    assert progress.caught_up_at < 0
    progress.acknowledged(RaftIndex(500), RaftIndex(0), 0)
    progress.note_caught_up(RaftIndex(501), 1_200)
    assert progress.caught_up_at == 1_000


def test_a_member_that_flushes_less_often_than_it_responds_is_caught_up() -> None:
    progress = replicating()
    progress.note_caught_up(RaftIndex(5), 0)
    end = 5
    for now in range(100, 10_000, 100):
        # The leader grows all the time, and what the member reports is always of a second ago.
        end += 10
        stored = RaftIndex(max(5, end - 100))
        progress.acknowledged(stored, stored, 0)
        progress.note_caught_up(RaftIndex(end), now)
    assert now - progress.caught_up_at <= 2_000


def test_a_member_that_falls_ever_further_behind_is_not_caught_up() -> None:
    progress = replicating()
    progress.note_caught_up(RaftIndex(5), 0)
    for now in range(100, 20_000, 100):
        progress.acknowledged(RaftIndex(5 + now // 10), RaftIndex(5 + now // 10), 0)
        progress.note_caught_up(RaftIndex(5 + now), now)
    assert now - progress.caught_up_at > 10_000
