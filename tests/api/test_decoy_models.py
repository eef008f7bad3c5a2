"""Unknown names look like the users there are: nobody learns from SCRAM who exists."""

from collections import Counter

import pytest

from moldau.api.decoy_models import DecoyModels
from moldau.metadata.security import User
from moldau.security.scram import ScramCredential, ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
NAMES = [f"name-{number}" for number in range(1000)]


def users(*shapes: tuple[int, int], first: int = 0) -> dict[str, User]:
    return {
        f"user-{number}": User(
            f"user-{number}", {SHA_256: ScramCredential(bytes(size), iterations, b"", b"")}
        )
        for number, (iterations, size) in enumerate(shapes, first)
    }


def shapes_of(models: DecoyModels) -> list[tuple[int, int]]:
    found = [models.of(name, SHA_256) for name in NAMES]
    return [(each.iterations, len(each.salt)) for each in found if each is not None]


def test_unknown_names_have_every_shape_that_users_have_in_their_shares() -> None:
    stored = users(*[(4096, 26)] * 3, (8192, 16))
    counts = Counter(shapes_of(DecoyModels(lambda: stored, b"k")))
    assert counts.keys() == {(4096, 26), (8192, 16)}
    assert counts[8192, 16] == pytest.approx(250, abs=60)


def test_a_name_keeps_its_shape_while_users_stay() -> None:
    stored = users((4096, 26), (8192, 16))
    models = DecoyModels(lambda: stored, b"k")
    first = shapes_of(models)
    stored = dict(reversed(stored.items()))
    assert shapes_of(models) == first
    # By all brokers of the cluster, and by no one else.
    assert shapes_of(DecoyModels(lambda: stored, b"k")) == first
    assert shapes_of(DecoyModels(lambda: stored, b"other")) != first


def test_few_names_change_their_shape_when_a_user_comes() -> None:
    stored = users(*[(4096, 26), (8192, 16)] * 50)
    models = DecoyModels(lambda: stored, b"k")
    before = shapes_of(models)
    stored = {**stored, **users((8192, 16), first=100)}
    changed = sum(a != b for a, b in zip(before, shapes_of(models), strict=True))
    assert changed < 20


def test_a_mechanism_that_no_user_has_has_no_model() -> None:
    stored = users((4096, 26))
    models = DecoyModels(lambda: stored, b"k")
    assert models.of("nobody", SHA_512) is None
    stored = {}
    assert models.of("nobody", SHA_256) is None
