"""Replicas are compared by what their files hold: any difference in what all have is found."""

from pathlib import Path

import pytest

from faults.replicas import Comparison, compare
from moldau.testing.logs import make_batch

PAGE = bytes(4096)


def write(home: Path, *batches: bytes, name: str = f"{0:020d}", zeros: int = 100) -> Path:
    directory = home / "topics" / "t" / "some-id" / "0"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.log").write_bytes(PAGE + b"".join(batches) + bytes(zeros))
    return home


def three(tmp_path: Path) -> list[Path]:
    batches = [make_batch(0, count=3), make_batch(3, count=2), make_batch(5)]
    return [write(tmp_path / f"b{n}", *batches, zeros=n * 1000) for n in range(3)]


def compared(homes: list[Path]) -> Comparison:
    return compare({0: homes}, "t")


def test_room_that_was_taken_in_advance_is_no_difference(tmp_path: Path) -> None:
    found = compared(three(tmp_path))
    assert found.differences == []
    assert (found.partitions, found.replicas) == (1, 3)


def test_segments_may_end_at_other_places(tmp_path: Path) -> None:
    homes = three(tmp_path)
    write(homes[1], make_batch(0, count=3))
    write(homes[1], make_batch(3, count=2), make_batch(5), name=f"{3:020d}")
    assert compared(homes).differences == []


@pytest.mark.parametrize(
    "batches",
    [
        [make_batch(0, count=3), make_batch(3, count=2)],
        [make_batch(0, count=3), make_batch(3, count=2), make_batch(5), make_batch(6)],
        [make_batch(0, count=3), make_batch(3, count=2, value=b"w"), make_batch(5)],
        [make_batch(0, count=3), make_batch(3, count=2, epoch=2), make_batch(5)],
        [make_batch(0, count=3), make_batch(5)],
    ],
    ids=["shorter", "longer", "other-value", "other-epoch", "gap"],
)
def test_a_difference_is_found(tmp_path: Path, batches: list[bytes]) -> None:
    homes = three(tmp_path)
    write(homes[2], *batches)
    assert len(compared(homes).differences) == 1


def test_a_missing_replica_is_found(tmp_path: Path) -> None:
    assert len(compared([*three(tmp_path), tmp_path / "none"]).differences) == 1


def test_what_retention_took_from_one_is_no_difference(tmp_path: Path) -> None:
    homes = three(tmp_path)
    (homes[0] / "topics" / "t" / "some-id" / "0" / f"{0:020d}.log").unlink()
    write(homes[0], make_batch(3, count=2), make_batch(5), name=f"{3:020d}")
    assert compared(homes).differences == []


def test_producers_that_began_a_new_epoch_are_counted(tmp_path: Path) -> None:
    homes = three(tmp_path)
    assert compared(homes).bumps == 0
    batch = bytearray(make_batch(0))
    # Producer 7, epoch 2.
    batch[43:53] = (7).to_bytes(8, "big") + (2).to_bytes(2, "big")
    for home in homes:
        write(home, bytes(batch))
    assert compared(homes).bumps == 1


def test_only_the_newest_generation_of_a_log_counts(tmp_path: Path) -> None:
    homes = three(tmp_path)
    write(homes[0], make_batch(0, count=3, value=b"left over"))
    write(
        homes[0],
        make_batch(3, count=2),
        make_batch(5),
        name=f"{3:020d}-1",
    )
    assert compared(homes).differences == []
