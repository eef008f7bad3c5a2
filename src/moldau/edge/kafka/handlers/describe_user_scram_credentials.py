"""DescribeUserScramCredentials (50): mechanisms and iterations of users, without any secret."""

from collections import Counter
from collections.abc import Mapping

from moldau.edge.kafka.handler import Api, Call
from moldau.model.errors import ErrorCode, RefusedError
from moldau.security.scram import ScramMechanism
from moldau.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    call: Call, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    try:
        users = call.session.security.users()
    except RefusedError as error:
        return _refused(error, [each.name for each in request.users or ()])
    # Null and an empty list both mean all users.
    asked = Counter([each.name for each in request.users or ()] or sorted(users))
    return DescribeUserScramCredentialsResponse(
        results=[_result(name, count, users.get(name)) for name, count in asked.items()]
    )


def _refused(error: RefusedError, names: list[str]) -> DescribeUserScramCredentialsResponse:
    """For each user where some are named: librdkafka (2.16) crashes on an error of the whole."""
    if not names:
        return DescribeUserScramCredentialsResponse(
            error_code=error.code, error_message=str(error), results=[]
        )
    return DescribeUserScramCredentialsResponse(
        results=[
            DescribeUserScramCredentialsResult(
                user=name,
                error_code=error.code,
                error_message=str(error),
                credential_infos=[],
            )
            for name in dict.fromkeys(names)
        ]
    )


def _result(
    name: str, count: int, credentials: Mapping[ScramMechanism, int] | None
) -> DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResult(user=name, credential_infos=[])
    if count > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = f"The request names user {name!r} more than once"
    elif credentials is None:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = f"User {name!r} does not exist"
    else:
        result.credential_infos = [
            CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in sorted(credentials.items())
        ]
    return result


API = Api(DescribeUserScramCredentialsRequest, versions=(0, 0), handle=handle)
