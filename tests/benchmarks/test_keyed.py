import ctypes

from benchmarks.keyed import PREPARED, Supply
from benchmarks.rdkafka import Message


def taken(supply: Supply, count: int) -> tuple[list[tuple[int, bytes]], int]:
    """Sizes and keys of what is handed out, read as librdkafka reads it, and the bytes said."""
    first, size = supply.take(count)
    array = ctypes.cast(first, ctypes.POINTER(Message))
    messages = [array[at] for at in range(count)]
    return [(one.len, ctypes.string_at(one.key, one.key_len)) for one in messages], size


def test_messages_have_sizes_and_keys_and_their_bytes_are_counted() -> None:
    found, size = taken(Supply(100, 1024), 50)
    sizes = [each for each, _ in found]
    assert size == sum(sizes)
    assert all(100 <= each <= 1024 for each in sizes)
    assert len(set(sizes)) > 10
    assert len({key for _, key in found}) > 40
    assert all(key.startswith(b"key-") for _, key in found)


def test_each_turn_takes_other_messages_until_all_were_used() -> None:
    supply = Supply(100, 1024)
    whole, _ = taken(Supply(100, 1024), PREPARED)
    first, _ = taken(supply, 3000)
    assert first == whole[:3000]
    # The rest is too short.
    assert taken(supply, 3000)[0] == whole[:3000]
    assert taken(supply, 100)[0] == whole[3000:3100]
