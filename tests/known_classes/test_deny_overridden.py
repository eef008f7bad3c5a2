"""Known class: a deny that another rule, a role, an earlier decision or another way overrides."""

from collections.abc import Iterator

import grpc
import pytest
from chunks import in_memory
from msgspec.structs import replace
from secured_broker import PASSWORDS, SecuredBroker, secured_broker
from security_world import rule

from moldau.model.errors import ErrorCode
from moldau.proto.v1 import queue_pb2 as pb
from moldau.proto.v1 import queue_pb2_grpc as stubs
from moldau.security.acl import Operation, PatternType, Permission, ResourceType
from moldau.security.principal import user
from moldau.security.roles import role_acls
from moldau.testing.waiting import wait_seconds_max
from raw_client import records

pytestmark = pytest.mark.system

WHO = "powerless"
NAME = f"User:{WHO}"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALLOW_PREFIX = rule(name="pay", pattern=PatternType.PREFIXED, principal=NAME)
ALLOW_ALL = rule(Operation.ALL, name="*", principal=NAME)
DENY = Permission.DENY
CASES = {
    "a literal deny below a prefix": (rule(permission=DENY, name="{}", principal=NAME),),
    "a longer prefix below a prefix": (
        rule(permission=DENY, name="{}", principal=NAME, pattern=PatternType.PREFIXED),
    ),
    "a deny of everyone": (rule(permission=DENY, name="{}", principal="User:*"),),
    "a deny of all operations": (rule(Operation.ALL, DENY, name="{}", principal=NAME),),
    "a deny of the host": (rule(permission=DENY, name="{}", principal=NAME, host="127.0.0.1"),),
    "a deny of a block of hosts": (
        rule(permission=DENY, name="{}", principal=NAME, host="127.0.0.0/8"),
    ),
    "a deny beside an allow of the same name": (
        rule(name="{}", principal=NAME),
        rule(permission=DENY, name="{}", principal=NAME),
        rule(Operation.ALL, name="{}", principal=NAME, host="127.0.0.1"),
    ),
    "a deny before a role": (
        rule(permission=DENY, name="{}", principal=NAME),
        *role_acls("admin", user(WHO), topic="{}"),
    ),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredBroker]:
    with secured_broker() as started:
        started.put_topic("pay-open", "open to all of pay")
        started.put_rules(ALLOW_PREFIX, ALLOW_ALL)
        yield started


def readers(secured: SecuredBroker, topic: str) -> dict[str, bool]:
    """By each way to read the topic, whether it was refused; what is shown is nothing then."""
    topic_id = bytes.fromhex(secured.read(f"/api/v1/topics/{topic}")["id"])
    with secured.kafka(WHO) as client:
        by_name = client.fetch(topic, 0)
        by_id = client.fetch_response(topic, 0, version=13, topic_id=topic_id)
    status, _, shown = secured.ask(WHO, "GET", f"/api/v1/topics/{topic}/records")
    tailed, _, _ = secured.ask(WHO, "GET", f"/api/v1/topics/{topic}/tail?offset=earliest")
    with grpc.insecure_channel(secured.broker.grpc_address) as channel:
        metadata = tuple(secured.authorization(WHO).items())
        call = stubs.QueueStub(channel).ReadFrom(
            pb.ReadFromRequest(topic=topic), metadata=metadata, timeout=wait_seconds_max()
        )
        try:
            streamed = [each.SerializeToString() for each in call]
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            streamed, code = [], error.code()
    seen = [
        *(bytes(record.value or b"") for record in records(by_name.records or b"")),
        *(in_memory(part.records or b"") for each in by_id.topics for part in each.partitions),
        shown.encode(),
        *streamed,
    ]
    refused = {
        "name": by_name.error_code == DENIED,
        # Unknown: the client may not even describe it.
        "id": by_id.topics[0].partitions[0].error_code in (DENIED, ErrorCode.UNKNOWN_TOPIC_ID),
        "HTTP": status == 403,
        "tail": tailed == 403,
        "gRPC": code is grpc.StatusCode.PERMISSION_DENIED,
    }
    if any(refused.values()):
        assert not any(b"hidden" in each for each in seen)
    return refused


def test_an_allow_of_the_prefix_is_enough_where_nothing_denies(secured):
    """The check of this test: each way to read is open to the same client."""
    assert not any(readers(secured, "pay-open").values())


@pytest.mark.parametrize("case", CASES)
def test_no_allow_overrides_it(secured, case):
    """The client has read the topic before: no decision outlives its rules."""
    topic = f"pay-{case.replace(' ', '-')}"
    secured.put_topic(topic, "hidden")
    assert not any(readers(secured, topic).values())
    secured.put_rules(
        *(replace(each, resource_name=each.resource_name.format(topic)) for each in CASES[case])
    )
    refused = readers(secured, topic)
    assert all(refused.values()), refused


def test_a_deny_of_a_group_holds_though_its_topic_is_allowed(secured):
    secured.put_rules(
        rule(Operation.READ, DENY, name="pay-group", principal=NAME, kind=ResourceType.GROUP),
        rule(Operation.ALL, name="*", principal=NAME, kind=ResourceType.GROUP),
    )
    with grpc.insecure_channel(secured.broker.grpc_address) as channel:
        wanted = pb.ConnectRequest(group="pay-group", topics=["pay-open"], mode=pb.ORDERED)
        with pytest.raises(grpc.RpcError) as caught:
            stubs.QueueStub(channel).Connect(
                wanted,
                metadata=tuple(secured.authorization(WHO).items()),
                timeout=wait_seconds_max(),
            )
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_super_user_is_the_only_one_above_a_deny(secured):
    """The local administrator is one: rules can lock nobody out of the cluster for good."""
    secured.put_topic("pay-nobody", "hidden")
    secured.put_rules(rule(Operation.ALL, DENY, name="pay-nobody", principal="User:*"))
    for who in PASSWORDS:
        status, _, _ = secured.ask(who, "GET", "/api/v1/topics/pay-nobody/records")
        assert status == 403
    assert secured.read("/api/v1/topics/pay-nobody/records")["records"]
