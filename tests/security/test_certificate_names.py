"""From the subject of a certificate to a user, by Kafka's rules, and no way around them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.security.certificate_names import RULES_LENGTH_MAX, CertificateNames
from moldau.security.principal import user
from moldau.security.sasl import AuthenticationError

ALICE = "CN=alice,OU=Sales,O=Acme,C=DE"
# The example of Kafka's documentation.
KAFKA = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


def named(rules: str, subject: str = ALICE) -> str:
    return CertificateNames(rules).principal(subject).name


def reason(rules: str, subject: str = ALICE) -> str:
    with pytest.raises(AuthenticationError) as caught:
        CertificateNames(rules).principal(subject)
    assert "alice" not in str(caught.value)
    return caught.value.reason


def test_without_rules_the_subject_is_the_user():
    assert CertificateNames().principal(ALICE) == user(ALICE)


def test_the_rules_of_kafkas_documentation_are_read():
    assert named(KAFKA, "CN=serviceuser,OU=ServiceUsers,O=Unknown,C=DE") == "serviceuser"
    subject = "CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
    assert named(KAFKA, subject) == "adminuser@admin"
    assert named(KAFKA, "O=Acme,CN=Bob.X,C=DE") == "bob.x"
    assert named(KAFKA, "O=Acme,C=DE") == "O=Acme,C=DE"


def test_the_first_rule_that_matches_wins():
    assert named("RULE:CN=(\\w+),.*/$1/,DEFAULT") == "alice"
    assert named("DEFAULT,RULE:CN=(\\w+),.*/$1/") == ALICE
    assert named("RULE:CN=bob,.*/b/ , RULE:CN=(a.*?),.*/x-$1/U") == "X-ALICE"


def test_a_rule_is_for_the_whole_subject():
    """Else a subject that only contains what is expected would get the name."""
    assert "no rule" in reason("RULE:CN=alice/alice/")
    assert "no rule" in reason("RULE:OU=Sales,O=Acme,C=DE/sales/")
    assert "no rule" in reason("RULE:CN=(\\w+)$/$1/", ALICE + "\n")


def test_a_comma_within_a_value_is_no_new_attribute():
    """A client that chooses its common name does not choose its unit."""
    rules = "RULE:CN=([^,\\\\]*),OU=Admins,O=Acme/$1/"
    assert named(rules, "CN=root,OU=Admins,O=Acme") == "root"
    assert "no rule" in reason(rules, "CN=root\\,OU=Admins\\,O=Acme,OU=Guests,O=Acme")
    assert "no rule" in reason(rules, "CN=root\\,OU=Admins,O=Acme")


def test_escapes_and_references_in_the_replacement():
    assert named("RULE:CN=(\\w+),OU=(\\w+),.*/$2\\/$1/") == "Sales/alice"
    assert named("RULE:CN=(\\w+),.*/\\$1-$1/") == "$1-alice"
    assert named("RULE:CN=(\\w+)(x)?,.*/$1$2/") == "alice"
    # What a group found is not read for references again.
    assert named("RULE:CN=(.*)/$1/", "CN=$1") == "$1"


@pytest.mark.parametrize("name", ["*", "ANONYMOUS", "moldau-admin"])
def test_no_certificate_gets_a_reserved_name(name: str):
    assert "reserved" in reason("RULE:CN=(.*)/$1/", f"CN={name}")
    # Nor by a change of case.
    assert "reserved" in reason(f"RULE:.*/{name.lower()}/{'U' if name.isupper() else ''}")


@pytest.mark.parametrize("subject", ["", "CN=" + "a" * 510, "CN=a\0b", "CN=a\nb"])
def test_a_subject_that_is_no_name_is_refused(subject: str):
    assert reason("DEFAULT", subject)


def test_an_empty_result_is_no_user():
    assert reason("RULE:.*//")


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "  ",
        "default",
        "RULE:",
        "RULE:a",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "RULE:a/b/ RULE:c/d/",
        "DEFAULT,",
        ",DEFAULT",
        "DEFAULT DEFAULT",
        "RULE:(/b/",
        "RULE:a)/b/",
        "RULE:[a/b/",
        "RULE:a/$1/",
        "RULE:(a)/$2/",
        "RULE:*/b/",
        "RULE:" + "(" * 1500 + ")" * 1500 + "/b/",
        "RULE:a{99999999999999999999}/b/",
        "x" * (RULES_LENGTH_MAX + 1),
    ],
)
def test_rules_with_a_mistake_are_refused_at_once(rules: str):
    with pytest.raises(ValueError):
        CertificateNames(rules)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a?)*b",
        "(a?a?){9}b",
        "(a*)*b",
        "((a+))+b",
        "(a|a)*b",
        "(?:a+){10}b",
        "(x(a+)y)*b",
        "(a|aa)+b",
        "([a-z]+)*b",
        "(a{1,9}){1,9}b",
        "(?=a+)+b",
        "(a)\\1+",
        "(?P<n>a)b",
        "(?i)a",
    ],
)
def test_a_pattern_that_could_take_forever_is_refused(pattern: str):
    with pytest.raises(ValueError):
        CertificateNames(f"RULE:{pattern}/x/")


@pytest.mark.parametrize(
    "pattern",
    [
        "CN=(.*?),OU=(.*?),O=(.*?)",
        "CN=(alice|bob),.*",
        "(?:CN|UID)=([^,]+),.*",
        "CN=([a-z()*+|]+).*",
        "CN=(a)?.*",
        "CN=\\(a+\\)+.*",
        "[]*+]+x[^]*+]*",
        "(abc)*",
    ],
)
def test_usual_patterns_are_accepted(pattern: str):
    CertificateNames(f"RULE:{pattern}/x/")


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_rules_and_no_subject_do_worse_than_being_refused(rules: str, subject: str):
    try:
        names = CertificateNames(f"RULE:{rules}/$1/")
    except ValueError:
        return
    with suppress(AuthenticationError):
        assert names.principal(subject).name


def test_patterns_run_once_for_a_subject(monkeypatch: pytest.MonkeyPatch):
    names = CertificateNames("RULE:CN=(a[a-z]*)/$1/")
    runs: list[str] = []
    rule = names._rules[0]
    assert rule is not None
    apply = rule.apply

    def counted(subject: str) -> str | None:
        runs.append(subject)
        return apply(subject)

    monkeypatch.setattr(rule, "apply", counted)
    for _ in range(3):
        assert names.name_of("CN=alice") == "alice"
        with pytest.raises(AuthenticationError):
            names.name_of("CN=bob")
    assert runs == ["CN=alice", "CN=bob"]
