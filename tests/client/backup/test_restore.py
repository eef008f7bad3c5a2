"""What a restore sends in which order, and how it continues after any failure."""

from moldau.client.backup.restore import security_parts
from moldau.metadata.security_rules import ACLS_PER_COMMAND_MAX
from moldau.model.backup import AclCopy, QuotaCopy, SecurityCopy, UserCopy
from moldau.security.acl import Permission


def rule(number: int, permission: Permission) -> AclCopy:
    return AclCopy(
        resource_type=2,
        resource_name=f"t{number}",
        pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission=int(permission),
    )


def test_users_and_rules_of_any_number_are_sent_in_parts():
    allow = [rule(number, Permission.ALLOW) for number in range(ACLS_PER_COMMAND_MAX + 1)]
    deny = [rule(number, Permission.DENY) for number in range(3)]
    users = [UserCopy(name=f"u{number}", credentials=()) for number in range(450)]
    quotas = [QuotaCopy(user=user.name, client_id=None, limits={}) for user in users]
    all_of_it = SecurityCopy(users=tuple(users), acls=(*allow, *deny), quotas=tuple(quotas))
    parts = list(security_parts(all_of_it, "u7"))
    assert max(len(part.acls) + len(part.users) + len(part.quotas) for part in parts) <= 500
    # Nobody may do for a moment what is prohibited; and the password of the command holds.
    assert [acl for part in parts for acl in part.acls] == [*deny, *allow]
    assert [quota for part in parts for quota in part.quotas] == quotas
    sent = [user for part in parts for user in part.users]
    assert sorted(sent, key=users.index) == users
    assert sent[-1].name == "u7"
    assert parts[-1].users[-1].name == "u7"
    assert list(security_parts(SecurityCopy(), None)) == []
