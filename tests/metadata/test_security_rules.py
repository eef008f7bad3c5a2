"""Users, ACLs, quotas and join tokens: what is accepted, within which bounds."""

from collections.abc import Callable

import pytest
from msgspec.structs import asdict, replace
from security_world import credential, rule

from moldau.metadata import security_rules
from moldau.metadata.apply import apply_all
from moldau.metadata.commands import (
    AlterQuotas,
    Command,
    CreateAcls,
    CreateJoinToken,
    DeleteAcls,
    DeleteJoinToken,
    DeleteScramCredential,
    DeleteUser,
    PutScramCredentials,
    RegisterBroker,
)
from moldau.metadata.decide import decide
from moldau.metadata.image import EMPTY_IMAGE, Image
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.security.acl import AclFilter, Operation, Permission
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramMechanism

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = QuotaEntity("alice", None)
RATE = {"producer_byte_rate": 1.0}


def after(image: Image, *commands: Command) -> Image:
    for command in commands:
        image = apply_all(image, decide(command, image))
    return image


def refused(image: Image, command: Command) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decide(command, image)
    return caught.value


def register(number: int, **fields: object) -> RegisterBroker:
    given = RegisterBroker(id=BrokerId(number), host="h", port=1, incarnation=f"dir-{number}")
    return replace(given, **fields)


def put(user: str = "alice", mark: int = 1, **fields: object) -> PutScramCredentials:
    return replace(
        PutScramCredentials(user=user, credentials={SHA_256: credential(mark)}), **fields
    )


def token(name: str = "t", *, now: int = 0, expires: int = 100, mark: int = 1) -> CreateJoinToken:
    return CreateJoinToken(id=name, hash=bytes([mark]) * 32, expires_ms=expires, now_ms=now)


@pytest.fixture
def image() -> Image:
    return after(EMPTY_IMAGE, register(1))


# ---- users


def test_a_user_is_created_changed_and_deleted(image: Image) -> None:
    image = after(image, put())
    assert decide(put(), image) == []
    both = {SHA_256: credential(2), SHA_512: credential(3, SHA_512)}
    image = after(image, put(credentials=both))
    assert image.users["alice"].credentials == both
    image = after(image, DeleteScramCredential(user="alice", mechanism=SHA_256))
    assert list(image.users["alice"].credentials) == [SHA_512]
    image = after(image, DeleteScramCredential(user="alice", mechanism=SHA_512))
    assert not image.users
    image = after(image, put(), DeleteUser(user="alice"))
    assert not image.users


def test_a_user_that_is_made_again_is_another_one(image: Image) -> None:
    image = after(image, put())
    first = image.users["alice"].created
    assert first > 0
    changed = after(image, put(mark=2), put(credentials={SHA_512: credential(3, SHA_512)}))
    changed = after(changed, DeleteScramCredential(user="alice", mechanism=SHA_256))
    assert changed.users["alice"].created == first
    for deleted in (
        DeleteUser(user="alice"),
        DeleteScramCredential(user="alice", mechanism=SHA_256),
    ):
        assert after(image, deleted, put()).users["alice"].created > first


def test_a_new_password_leaves_no_old_one_valid(image: Image) -> None:
    image = after(image, put(credentials={SHA_512: credential(1, SHA_512)}))
    kept = after(image, put(mark=2))
    assert set(kept.users["alice"].credentials) == {SHA_256, SHA_512}
    changed = after(image, put(mark=2, replace_all=True))
    assert changed.users["alice"].credentials == {SHA_256: credential(2)}


def test_what_is_not_there_cannot_be_deleted(image: Image) -> None:
    image = after(image, put())
    for command in (
        DeleteUser(user="bob"),
        DeleteScramCredential(user="bob", mechanism=SHA_256),
        DeleteScramCredential(user="alice", mechanism=SHA_512),
        DeleteJoinToken(id="t"),
    ):
        assert refused(image, command).code is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    "name", ["", "*", "ANONYMOUS", "moldau-admin", "a" * 256, "é" * 128, " a", "a\n", "a\0b"]
)
def test_a_name_that_means_something_else_is_refused(image: Image, name: str) -> None:
    assert refused(image, put(name)).code is ErrorCode.UNACCEPTABLE_CREDENTIAL


def test_a_credential_has_bounds(image: Image) -> None:
    good = credential()
    for bad in (
        replace(good, iterations=4095),
        replace(good, iterations=1_000_001),
        replace(good, salt=b""),
        replace(good, salt=bytes(257)),
        replace(good, stored_key=bytes(64)),
        replace(good, server_key=b""),
    ):
        error = refused(image, put(credentials={SHA_256: bad}))
        assert error.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert refused(image, put(credentials={})).code is ErrorCode.UNACCEPTABLE_CREDENTIAL
    for bound in (4096, 1_000_000):
        assert decide(put(credentials={SHA_256: replace(good, iterations=bound)}), image)


# ---- ACLs


def test_acls_are_added_and_removed_by_filters(image: Image) -> None:
    read, write, deny = (
        rule(),
        rule(Operation.WRITE),
        rule(permission=Permission.DENY, principal="User:bob"),
    )
    image = after(image, CreateAcls(acls=[read, write, deny, read]))
    assert image.acls == {read, write, deny}
    assert decide(CreateAcls(acls=[read]), image) == []
    assert decide(CreateAcls(acls=[]), image) == []
    image = after(image, DeleteAcls(filters=[AclFilter(principal="User:alice")]))
    assert image.acls == {deny}
    assert decide(DeleteAcls(filters=[AclFilter(principal="User:alice")]), image) == []
    assert not after(image, DeleteAcls(filters=[AclFilter()])).acls


def test_one_invalid_rule_keeps_out_all_of_a_command(image: Image) -> None:
    error = refused(image, CreateAcls(acls=[rule(), rule(host="example.org")]))
    assert error.code is ErrorCode.INVALID_REQUEST
    bad = DeleteAcls(filters=[AclFilter(), AclFilter(principal="alice")])
    assert refused(image, bad).code is ErrorCode.INVALID_REQUEST


# ---- quotas


def test_limits_are_set_one_by_one(image: Image) -> None:
    image = after(image, AlterQuotas(entity=ALICE, limits={"producer_byte_rate": 1000}))
    image = after(image, AlterQuotas(entity=ALICE, limits={"request_percentage": 50}))
    assert image.quotas[ALICE] == {"producer_byte_rate": 1000.0, "request_percentage": 50.0}
    same = AlterQuotas(entity=ALICE, limits={"producer_byte_rate": 1000})
    assert decide(same, image) == []
    gone = {"producer_byte_rate": None, "request_percentage": None, "consumer_byte_rate": None}
    assert after(image, AlterQuotas(entity=ALICE, limits=gone)).quotas == {}


def test_the_default_is_another_entity_than_none(image: Image) -> None:
    for number, entity in enumerate(
        [ALICE, QuotaEntity("", None), QuotaEntity("", ""), QuotaEntity("alice", "")], start=1
    ):
        image = after(image, AlterQuotas(entity=entity, limits={"consumer_byte_rate": number}))
    assert [limits["consumer_byte_rate"] for limits in image.quotas.values()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("entity", "limits"),
    [
        (QuotaEntity(None, None), {"producer_byte_rate": 1.0}),
        (QuotaEntity("a" * 256, None), {"producer_byte_rate": 1.0}),
        (QuotaEntity(None, "a\n"), {"producer_byte_rate": 1.0}),
        (ALICE, {"bogus": 1.0}),
        (ALICE, {"bogus": None}),
        (ALICE, {"producer_byte_rate": 0.0}),
        (ALICE, {"producer_byte_rate": -1.0}),
        (ALICE, {"producer_byte_rate": float("nan")}),
        (ALICE, {"producer_byte_rate": float("inf")}),
    ],
)
def test_a_quota_that_means_nothing_is_refused(
    image: Image, entity: QuotaEntity, limits: dict[str, float | None]
) -> None:
    error = refused(image, AlterQuotas(entity=entity, limits=limits))
    assert error.code is ErrorCode.INVALID_REQUEST


# ---- join tokens


@pytest.mark.safety
def test_a_token_lets_one_broker_join_once(image: Image) -> None:
    image = after(image, token(expires=1_001), register(2, join_token_id="t"))
    assert image.join_tokens["t"].used_by == "dir-2"
    assert BrokerId(2) in image.brokers
    error = refused(image, register(3, join_token_id="t"))
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    # The same broker may ask again, with other addresses, until the token expires.
    assert decide(register(2, join_token_id="t", now_ms=1_000), image) == []
    moved = after(image, register(2, join_token_id="t", now_ms=1_000, process="again", host="i"))
    assert moved.brokers[BrokerId(2)].host == "i"
    assert refused(image, register(2, join_token_id="t", now_ms=1_001))


def test_a_token_that_is_unknown_or_expired_lets_nobody_join(image: Image) -> None:
    image = after(image, token(expires=100))
    texts = {
        refused(image, command).message
        for command in (
            register(2, join_token_id="other"),
            register(2, join_token_id="t", now_ms=100),
            register(2, join_token_id="t", now_ms=101),
        )
    }
    assert len(texts) == 1
    assert decide(register(2, join_token_id="t", now_ms=99), image)
    deleted = after(image, DeleteJoinToken(id="t"))
    assert refused(deleted, register(2, join_token_id="t", now_ms=99))


def test_a_token_is_not_used_up_by_a_registration_that_is_refused(image: Image) -> None:
    image = after(image, token())
    copied = register(2, join_token_id="t", incarnation="dir-1")
    assert refused(image, copied).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert refused(image, register(2, join_token_id="t", host=""))
    assert decide(register(2, join_token_id="t"), image)


def test_nothing_of_a_token_is_stored_with_the_broker(image: Image) -> None:
    image = after(image, token(), register(2, join_token_id="t", now_ms=5))
    assert after(image, register(2)) == image


def test_a_token_is_created_within_bounds(image: Image) -> None:
    for bad in (
        token(""),
        token("a" * 65),
        token(now=100, expires=100),
        replace(token(), hash=b"short"),
    ):
        assert refused(image, bad).code is ErrorCode.INVALID_REQUEST
    image = after(image, token())
    assert decide(token(), image) == []
    assert refused(image, token(mark=2)).code is ErrorCode.DUPLICATE_RESOURCE


def test_expired_tokens_go_when_another_one_is_created(image: Image) -> None:
    image = after(image, token("a", expires=10), token("b", expires=20))
    image = after(image, token("c", now=10, expires=30))
    assert set(image.join_tokens) == {"b", "c"}


# ---- bounds


@pytest.mark.parametrize(
    ("limit", "command"),
    [
        ("USERS_MAX", put),
        ("QUOTAS_MAX", lambda name: AlterQuotas(entity=QuotaEntity(name, None), limits=RATE)),
        ("ACLS_MAX", lambda name: CreateAcls(acls=[rule(name=name)])),
        ("JOIN_TOKENS_MAX", token),
    ],
)
def test_there_are_at_most_so_many(
    image: Image,
    limit: str,
    command: Callable[[str], Command],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(security_rules, limit, 2)
    image = after(image, command("a"), command("b"))
    error = refused(image, command("c"))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "2" in error.message
    # What is there already can still be changed.
    assert decide(command("a"), image) == []


def test_one_command_has_at_most_so_many_rules(image: Image) -> None:
    many = [rule(name=f"t{number}") for number in range(1001)]
    assert refused(image, CreateAcls(acls=many)).code is ErrorCode.INVALID_REQUEST
    assert decide(CreateAcls(acls=many[:1000]), image)
    filters = [AclFilter(resource_name=f"{number}") for number in range(21)]
    assert refused(image, DeleteAcls(filters=filters)).code is ErrorCode.INVALID_REQUEST
    assert decide(DeleteAcls(filters=filters[:20] * 2), image) == []
    exact = [AclFilter(**asdict(acl)) for acl in many]
    assert refused(image, DeleteAcls(filters=exact)).code is ErrorCode.INVALID_REQUEST
    image = after(image, CreateAcls(acls=many[:1000]))
    assert not after(image, DeleteAcls(filters=exact[:1000])).acls


# ---- versions


@pytest.mark.parametrize(
    "command",
    [put(), CreateAcls(acls=[rule()]), AlterQuotas(entity=ALICE, limits=RATE), token()],
    ids=lambda command: type(command).__name__,
)
def test_a_broker_that_cannot_read_the_records_prevents_them(
    image: Image, command: Command
) -> None:
    old = after(image, register(2, feature_level_max=2))
    error = refused(old, command)
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
    assert "Broker 2" in error.message
    image = after(image, command)
    assert image.feature_level == 3
    error = refused(image, register(2, feature_level_max=2))
    assert error.code is ErrorCode.UNSUPPORTED_VERSION
