"""AlterUserScramCredentials (51): set or delete SCRAM credentials."""

from moldau.wire.fields import array, i8, i16, i32, octets, string
from moldau.wire.schema import Request, Response, Struct


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = i8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = i8()
    iterations: int = i32()
    salt: bytes = octets()
    salted_password: bytes = octets()


class AlterUserScramCredentialsRequest(Request, key=51, versions=(0, 0), flexible=0):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = i16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class AlterUserScramCredentialsResponse(Response, key=51, versions=(0, 0), flexible=0):
    throttle_time_ms: int = i32(default=0)
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
