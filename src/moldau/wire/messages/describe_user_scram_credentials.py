"""DescribeUserScramCredentials (50): list SCRAM credentials, without their secrets."""

from moldau.wire.fields import array, i8, i16, i32, string
from moldau.wire.schema import Request, Response, Struct


class UserName(Struct):
    name: str = string()


class DescribeUserScramCredentialsRequest(Request, key=50, versions=(0, 0), flexible=0):
    users: list[UserName] | None = array(UserName, nullable="0+")


class CredentialInfo(Struct):
    mechanism: int = i8()
    iterations: int = i32()


class DescribeUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


class DescribeUserScramCredentialsResponse(Response, key=50, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
