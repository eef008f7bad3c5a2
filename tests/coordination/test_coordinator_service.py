"""Where a name's state is: by the hash that Kafka uses."""

import pytest

from moldau.coordination.coordinator_service import java_hash


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 0),
        ("hello", 99162322),
        # String.hashCode is negative for these.
        ("The quick brown fox jumps over the lazy dog", 609428141),
        ("polygenelubricants", 0),
        ("\U0001f600", 1772899),
    ],
)
def test_a_name_is_placed_as_kafka_places_it(name: str, code: int) -> None:
    assert java_hash(name) == code
