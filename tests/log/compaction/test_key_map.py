"""The map of compaction against a dict, within its memory."""

import random

import pytest

from moldau.log.compaction.key_map import KeyMap, bytes_for


@pytest.mark.parametrize("seed", range(5))
def test_the_newest_offset_of_every_key_is_found(seed: int) -> None:
    rng = random.Random(seed)
    keys = KeyMap(24 * 400)
    known: dict[bytes, int] = {}
    offset = 0
    while keys.room >= 5:
        batch = [rng.choice((None, b"", b"%d" % rng.randrange(400))) for _ in range(5)]
        deltas = sorted(rng.sample(range(9), 5))
        keys.add(offset, deltas, batch)
        known.update(
            (key, offset + delta)
            for delta, key in zip(deltas, batch, strict=True)
            if key is not None
        )
        offset += 9
        assert keys.count == len(known)
    names = list(known)
    assert keys.newest(names) == [known[name] for name in names]
    assert keys.newest([b"unknown", None, b"-1"]) == [-1, -1, -1]


@pytest.mark.parametrize("count", [1, 10, 1000, 50_000])
def test_as_many_keys_fit_as_were_asked_for(count: int) -> None:
    keys = KeyMap(bytes_for(count))
    assert keys.room >= count
    keys.add(0, range(count), [b"%d" % number for number in range(count)])
    assert keys.count == count
    assert keys.newest([b"%d" % (count - 1)]) == [count - 1]


def test_a_key_costs_32_bytes_and_a_full_map_takes_no_more() -> None:
    keys = KeyMap(1 << 20)
    assert (1 << 20) / keys.capacity < 32.1
    keys.add(0, range(keys.capacity), [b"%d" % n for n in range(keys.capacity)])
    assert keys.room == 0
    keys.add(5, [1], [b"7"])
    assert keys.newest([b"7"]) == [6]
    with pytest.raises(ValueError, match="full"):
        keys.add(0, [1], [b"one more"])
