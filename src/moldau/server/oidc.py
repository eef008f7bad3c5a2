"""Checks tokens of an identity provider, as OAUTHBEARER, HTTP and gRPC bring them."""

from moldau.model.clock import Clock
from moldau.security.jwt import TokenRules, UnknownKeyError, check_token
from moldau.security.principal import Principal
from moldau.server.config.security_schema import SecurityConfig
from moldau.server.jwks import Jwks


class OidcTokens:
    def __init__(self, rules: TokenRules, keys: Jwks, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._clock = clock

    async def check(self, token: str) -> tuple[Principal, int]:
        """The principal, and when the token expires. Raises AuthenticationError."""
        keys = await self._keys.keys()
        try:
            found = check_token(token, keys, self._rules, self._now())
        except UnknownKeyError:
            # The provider may have a new one.
            keys = await self._keys.keys(lacks_one=True)
            found = check_token(token, keys, self._rules, self._now())
        return found.principal, found.expires_at_ms

    async def stop(self) -> None:
        await self._keys.stop()

    def _now(self) -> float:
        return self._clock.wall_ms() / 1000


def oidc_tokens(security: SecurityConfig, clock: Clock) -> OidcTokens:
    """By settings that `config/identity_rules.py` has checked."""
    return OidcTokens(
        TokenRules(
            issuer=security.oidc_issuer or "",
            audience=security.oidc_audience or "",
            algorithms=security.oidc_algorithm_list,
            principal_claim=security.oidc_principal_claim,
            clock_skew_seconds=security.oidc_clock_skew_ms / 1000,
        ),
        Jwks(security.oidc_jwks_url or "", security.oidc_ca_file, clock),
        clock,
    )
