"""AlterUserScramCredentials and DescribeUserScramCredentials: passwords go in, none come out."""

import hashlib

from handler_calls import ask
from security_calls import SecurityCalls

from moldau.edge.kafka.handlers import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from moldau.model.errors import ErrorCode
from moldau.security.scram import ScramMechanism, is_password
from moldau.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = b"0123456789abcdef"
REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
Change = ScramCredentialUpsertion | ScramCredentialDeletion


def put(
    name: str,
    password: bytes = b"secret",
    mechanism: int = SHA_256,
    iterations: int = 4096,
    salt: bytes = SALT,
) -> ScramCredentialUpsertion:
    kind = "sha512" if mechanism == SHA_512 else "sha256"
    salted = hashlib.pbkdf2_hmac(kind, password, salt or b"-", max(iterations, 1))
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def remove(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(world: SecurityCalls, *changes: Change, name: str = "admin") -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    answer = ask(
        alter_user_scram_credentials.API,
        world.session(name),
        request,
        AlterUserScramCredentialsResponse,
    )
    assert len({result.user for result in answer.results}) == len(answer.results)
    return {result.user: result.error_code for result in answer.results}


def describe(
    world: SecurityCalls, *names: str, name: str = "admin"
) -> DescribeUserScramCredentialsResponse:
    users = [UserName(name=each) for each in names] or None
    return ask(
        describe_user_scram_credentials.API,
        world.session(name),
        DescribeUserScramCredentialsRequest(users=users),
        DescribeUserScramCredentialsResponse,
    )


def test_the_broker_derives_what_it_stores_from_the_salted_password():
    world = SecurityCalls()
    assert alter(world, put("alice"), put("alice", mechanism=SHA_512)) == {"alice": 0}
    stored = world.store.image.users["alice"].credentials
    for mechanism, credential in stored.items():
        assert is_password(b"secret", credential, mechanism)
        assert not is_password(b"other", credential, mechanism)
    assert sorted(stored) == [SHA_256, SHA_512]


def test_users_are_described_without_their_secrets():
    world = SecurityCalls()
    alter(world, put("bob", iterations=5000), put("alice"), put("alice", mechanism=SHA_512))
    answer = describe(world)
    assert [
        (result.user, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in answer.results
    ] == [("alice", [(SHA_256, 4096), (SHA_512, 4096)]), ("bob", [(SHA_256, 5000)])]
    codes = [
        (result.user, result.error_code)
        for result in describe(world, "bob", "nobody", "alice", "alice").results
    ]
    assert codes == [
        ("bob", ErrorCode.NONE),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
        ("alice", ErrorCode.DUPLICATE_RESOURCE),
    ]


def test_credentials_are_deleted_one_by_one_and_with_the_last_the_user():
    world = SecurityCalls()
    alter(world, put("alice"), put("alice", mechanism=SHA_512))
    assert alter(world, remove("alice")) == {"alice": 0}
    assert list(world.store.image.users["alice"].credentials) == [SHA_512]
    assert alter(world, remove("alice")) == {"alice": ErrorCode.RESOURCE_NOT_FOUND}
    assert alter(world, remove("alice", SHA_512)) == {"alice": 0}
    assert world.store.image.users == {}


def test_what_cannot_be_a_credential_is_refused_and_the_others_are_stored():
    world = SecurityCalls()
    short = put("short")
    short.salted_password = b"short"
    codes = alter(
        world,
        put("few", iterations=1),
        put("salt", salt=b""),
        put("unknown", mechanism=9),
        put("twice"),
        remove("twice"),
        short,
        put("moldau-admin"),
        put("good"),
    )
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert codes == {
        "few": unacceptable,
        "salt": unacceptable,
        "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "short": unacceptable,
        "moldau-admin": unacceptable,
        "good": 0,
    }
    assert list(world.store.image.users) == ["good"]


def test_users_without_rights_neither_see_nor_change_users():
    world = SecurityCalls()
    alter(world, put("alice"))
    before = world.store.image.users
    assert alter(world, put("alice", b"mine"), remove("bob"), name="bob") == {
        "bob": REFUSED,
        "alice": REFUSED,
    }
    assert world.store.image.users is before
    assert describe(world, name="bob").error_code == REFUSED
    (named,) = describe(world, "alice", name="bob").results
    assert (named.error_code, named.credential_infos) == (REFUSED, [])
    # The same for a user that does not exist.
    (unknown,) = describe(world, "nobody", name="bob").results
    assert unknown.error_code == REFUSED
