"""AlterUserScramCredentials (51): sets and deletes credentials of users.

The client has salted the password; the broker derives from that what it stores, which is not
enough to log in with.
"""

from collections import defaultdict

from moldau.edge.kafka.handler import Api, Call
from moldau.edge.kafka.large_requests import turns_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.scram import ScramCredential, ScramMechanism, credential_of_salted
from moldau.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle(
    call: Call, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    by_user: defaultdict[str, list[_Change]] = defaultdict(list)
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    for change in changes:
        by_user[change.name].append(change)
    return AlterUserScramCredentialsResponse(
        results=[
            await _alter(call, name, changes) async for name, changes in turns_of(by_user.items())
        ]
    )


async def _alter(call: Call, name: str, changes: list[_Change]) -> AlterUserScramCredentialsResult:
    result = AlterUserScramCredentialsResult(user=name)
    security, decided = call.session.security, call.session.decided
    try:
        # All of a user are checked before the first is made.
        for mechanism, credential in _checked(changes):
            if credential is None:
                await decided(security.delete_credential(name, mechanism))
            else:
                await decided(security.put_credential(name, mechanism, credential))
    except RefusedError as error:
        result.error_code = error.code
        result.error_message = str(error)
    return result


def _checked(changes: list[_Change]) -> list[tuple[ScramMechanism, ScramCredential | None]]:
    """Each mechanism with its new credential, or None to delete it. Raises RefusedError."""
    found: dict[ScramMechanism, ScramCredential | None] = {}
    for change in changes:
        try:
            mechanism = ScramMechanism(change.mechanism)
        except ValueError:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"There is no SCRAM mechanism {change.mechanism}",
            ) from None
        if mechanism in found:
            raise RefusedError(
                ErrorCode.DUPLICATE_RESOURCE,
                f"The request changes {mechanism.sasl_name} of this user more than once",
            )
        found[mechanism] = (
            _credential(change, mechanism) if isinstance(change, ScramCredentialUpsertion) else None
        )
    return list(found.items())


def _credential(change: ScramCredentialUpsertion, mechanism: ScramMechanism) -> ScramCredential:
    salted = bytes(change.salted_password)
    if len(salted) != mechanism.hash_bytes:
        raise RefusedError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"A salted password of {mechanism.sasl_name} has {mechanism.hash_bytes} bytes, not "
            f"{len(salted)}",
        )
    return credential_of_salted(salted, bytes(change.salt), change.iterations, mechanism)


API = Api(AlterUserScramCredentialsRequest, versions=(0, 0), handle=handle)
