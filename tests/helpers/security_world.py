"""Users and rules as tests of several packages need them."""

from hypothesis import strategies as st

from moldau.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from moldau.security.scram import ScramCredential, ScramMechanism


def rule(
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    *,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def credential(
    mark: int = 1, mechanism: ScramMechanism = ScramMechanism.SHA_256
) -> ScramCredential:
    """Of no password, but well formed; each mark gives another one."""
    key = bytes([mark]) * mechanism.hash_bytes
    return ScramCredential(bytes([mark]) * 16, 4096, key, key)


NAMES = ("orders", "orders.eu", "ord", "o", "*", "payments")
PRINCIPALS = ("User:alice", "User:*", "User:bob")
HOSTS = ("*", "10.0.0.1", "10.0.0.0/8", "192.168.0.0/16")

acls = st.builds(
    rule,
    st.sampled_from([each for each in Operation if each is not Operation.ANY]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
    name=st.sampled_from(NAMES),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    kind=st.sampled_from([ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP]),
)
"""Also rules with operations that their resource does not have."""

acl_filters = st.builds(
    AclFilter,
    resource_type=st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    resource_name=st.none() | st.sampled_from(NAMES),
    pattern_type=st.sampled_from(PatternType),
    principal=st.none() | st.sampled_from(PRINCIPALS),
    host=st.none() | st.sampled_from(HOSTS),
    operation=st.sampled_from(Operation),
    permission=st.sampled_from(Permission),
)

credentials = st.builds(credential, st.integers(0, 2), st.sampled_from(ScramMechanism))
"""Half of them have keys of the wrong length for the mechanism that they are given to."""
