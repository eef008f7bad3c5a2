"""The connection that the options, the environment and the profile of a command describe.

As properties of Kafka clients, which all our clients parse the same way.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from moldau.cli.connection.options import values
from moldau.cli.connection.passwords import (
    ADMIN_TOKEN,
    password_for,
    read_admin_token,
    read_password_file,
)
from moldau.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from moldau.cli.connection.profiles import Profile
    from moldau.client.security import Security

KEY_PASSWORD_VARIABLE: Final = "MOLDAU_KEY_PASSWORD"
_RESOLVED: Final = f"{__name__}.resolved"
_LOCAL: Final = f"{__name__}.local"
_FIELDS: Final = {"brokers": "brokers", "addresses": "grpc", "http": "http"}
"""Parameters with addresses, and the fields of a profile that have them."""
_TLS_FILES: Final = {
    "ssl.ca.location": "cafile",
    "ssl.certificate.location": "certfile",
    "ssl.key.location": "keyfile",
}


def current_properties() -> dict[str, str]:
    """The security properties of the command that runs."""
    return properties_in(_context())


def current_security(properties: Mapping[str, str] | None = None) -> "Security":
    """Of the command that runs, with its properties (-X). May ask for a password.

    Raises ClientError and CommandError.
    """
    return security_in(_context(), properties)


def use_local_tokens(directories: Mapping[str, Path]) -> None:
    """For the brokers of `moldau cluster`, by address: who can read their data directories may
    administer them, and need not log in."""
    _context().meta[_LOCAL] = dict(directories)


def security_at(address: str) -> "Security":
    """As `current_security`, for one address."""
    from dataclasses import replace

    from moldau.cli.connection.negotiation import chosen_mechanism
    from moldau.client.sasl import LOCAL_ADMIN, Sasl

    ctx = _context()
    found = current_security()
    directory = ctx.meta.get(_LOCAL, {}).get(address)
    if found.sasl is not None or directory is None or not (directory / ADMIN_TOKEN).exists():
        return found
    token = read_admin_token(str(directory))
    mechanism = chosen_mechanism(address, _tls(ctx, None))
    return replace(found, sasl=Sasl(mechanism=mechanism, username=LOCAL_ADMIN, password=token))


def _context() -> click.Context:
    """Without a command, as in tests of its parts, only the environment counts."""
    return click.get_current_context(silent=True) or click.Context(click.Command("moldau"))


def security_in(
    ctx: click.Context, properties: Mapping[str, str] | None = None, *, ask: bool = True
) -> "Security":
    """As `current_security`, of this context."""
    from moldau.client.librdkafka_security import security_of

    return security_of({**properties_in(ctx, ask=ask), **(properties or {})})


def properties_in(ctx: click.Context, *, ask: bool = True) -> dict[str, str]:
    """The security properties of Kafka clients. With `ask`, may ask for a password: once."""
    known: dict[str, str] | None = ctx.meta.get(_RESOLVED)
    if known is None:
        known = _resolve(ctx, ask=ask)
        if ask:
            ctx.meta[_RESOLVED] = known
    return dict(known)


def _resolve(ctx: click.Context, *, ask: bool) -> dict[str, str]:
    from moldau.client.sasl import READABLE

    profile = _usable_profile(ctx)
    tls = _tls(ctx, profile)
    login = _login(ctx, profile, ask=ask)
    if "sasl.username" in login:
        login["sasl.mechanism"] = _mechanism(ctx, profile, tls)
    elif login and ask and ctx.params.get("brokers"):
        from moldau.cli.connection.negotiation import check_takes_tokens

        check_takes_tokens(str(ctx.params["brokers"]), tls)
    if not login and tls is None:
        return {}
    if tls is None and login["sasl.mechanism"] in READABLE:
        _check_stays_here(str(ctx.params.get("brokers") or ""))
    protocol = "PLAINTEXT" if tls is None else "SSL"
    return {
        "security.protocol": f"SASL_{protocol}" if login else protocol,
        **login,
        **(tls or {}),
    }


def _check_stays_here(brokers: str) -> None:
    """HTTP and gRPC clients check the same themselves. Raises CommandError."""
    from moldau.client.addresses import split_brokers
    from moldau.model.loopback import is_loopback

    for host, _ in split_brokers(brokers) if brokers else ():
        if not is_loopback(host):
            raise CommandError(
                f"will not send a password or token to {host} without TLS",
                hint="pass --tls or --cafile FILE, or use --mechanism SCRAM-SHA-512",
                code=ExitCode.USAGE,
            )


def _login(ctx: click.Context, profile: "Profile | None", *, ask: bool) -> dict[str, str]:
    from moldau.client.sasl import LOCAL_ADMIN

    user, is_user_typed = _value(ctx, "user")
    data_dir, _ = values(ctx).get("admin_dir", (None, False))
    if data_dir is not None:
        if is_user_typed:
            raise CommandError(
                "--user and --data-dir exclude each other",
                hint="--data-dir logs in as the local administrator",
                code=ExitCode.USAGE,
            )
        return {
            "sasl.username": LOCAL_ADMIN,
            "sasl.password": read_admin_token(str(data_dir)),
        }
    is_profile_typed = _value(ctx, "profile")[1]
    if user and (is_user_typed or not is_profile_typed):
        password_file = _value(ctx, "password_file")[0]
        if not ask and not password_file and not os.environ.get("MOLDAU_PASSWORD"):
            return {}
        return {
            "sasl.username": user,
            "sasl.password": password_for(user, password_file),
        }
    if profile is None:
        return {}
    if profile.token:
        return {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": profile.token}
    password = profile.password
    if profile.user and profile.password_file:
        password = read_password_file(profile.password_file)
    return {"sasl.username": profile.user, "sasl.password": password} if password else {}


def _mechanism(ctx: click.Context, profile: "Profile | None", tls: dict[str, str] | None) -> str:
    """The one that is given, else the best that the Kafka listener has."""
    from moldau.cli.connection.negotiation import MECHANISM_DEFAULT, chosen_mechanism

    given = _value(ctx, "mechanism")[0] or (profile.mechanism if profile else "")
    if given:
        return str(given)
    brokers = ctx.params.get("brokers")
    # HTTP and gRPC have their own ways to send a password.
    return chosen_mechanism(str(brokers), tls) if brokers else MECHANISM_DEFAULT


def tls_properties(ctx: click.Context) -> dict[str, str] | None:
    """Those of TLS for Kafka clients; None for plain text."""
    return _tls(ctx, _usable_profile(ctx))


def _tls(ctx: click.Context, profile: "Profile | None") -> dict[str, str] | None:
    """The properties of TLS; None for plain text."""
    wanted: bool | None = _value(ctx, "tls")[0]
    if wanted is None and any("https://" in str(ctx.params.get(name)) for name in _FIELDS):
        # Addresses that a broker advertises have no scheme.
        wanted = True
    found = {}
    for name, option in _TLS_FILES.items():
        value = _value(ctx, option)[0] or (getattr(profile, option) if profile else "")
        if value:
            found[name] = str(Path(value).expanduser())
    if wanted is False or (wanted is None and not found and (profile is None or not profile.tls)):
        return None
    if "ssl.certificate.location" in found:
        found.setdefault("ssl.key.location", found["ssl.certificate.location"])
    if password := os.environ.get(KEY_PASSWORD_VARIABLE):
        found["ssl.key.password"] = password
    return found


def current_profile(ctx: click.Context) -> "tuple[str, Profile]":
    """The profile that a login changes: the named or current one, or the default one."""
    from moldau.cli.connection.profiles import PROFILE_DEFAULT, Profile, load_profiles

    file = load_profiles()
    name = _value(ctx, "profile")[0] or file.current or PROFILE_DEFAULT
    return name, file.profiles.get(name, Profile())


def chosen_user(ctx: click.Context) -> tuple[str, str | None]:
    """The user and the password file that are given; empty: none."""
    return _value(ctx, "user")[0] or "", _value(ctx, "password_file")[0]


def check_profile_takes_tokens(ctx: click.Context, profile: "Profile") -> None:
    """Raises CommandError if the Kafka listener of a profile responds, and takes no tokens."""
    from moldau.cli.connection.negotiation import check_takes_tokens

    # Some are enough: those that cannot be reached from here take a second each.
    check_takes_tokens(",".join(profile.brokers.split(",")[:3]), _tls(ctx, profile))


def login_security(ctx: click.Context) -> "Security":
    """For a login: TLS only, whatever token the profile has."""
    from moldau.client.security import parse_security

    tls = _tls(ctx, current_profile(ctx)[1])
    return parse_security({} if tls is None else {"security.protocol": "SSL", **tls})


def tls_security(ctx: click.Context) -> "Security":
    """As `login_security`, with a profile for its own addresses only."""
    from moldau.client.security import parse_security

    found = _own_profile(ctx)
    tls = _tls(ctx, None if found is None else found[1])
    return parse_security({} if tls is None else {"security.protocol": "SSL", **tls})


def given_mechanism(ctx: click.Context) -> str:
    return _value(ctx, "mechanism")[0] or ""


def tls_files(ctx: click.Context, profile: "Profile", *, is_https: bool) -> dict[str, Any]:
    """The fields of a profile for TLS: what is given, else those of `profile`."""
    given = _tls(ctx, profile)
    if given is None:
        return {"tls": is_https}
    # Absolute: commands run in other directories, too.
    found = {
        option: str(Path(given[name]).absolute())
        for name, option in _TLS_FILES.items()
        if name in given
    }
    return {"tls": True, **found}


def _value(ctx: click.Context, name: str) -> tuple[Any, bool]:
    """An option, and whether it is from the command line; commands without it use the variable."""
    found = values(ctx).get(name)
    if found is not None:
        return found
    text = os.environ.get(f"MOLDAU_{name.upper()}")
    if name == "tls" and text is not None:
        return click.BOOL.convert(text, None, ctx), False
    return text or None, False


def _usable_profile(ctx: click.Context) -> "Profile | None":
    """The profile; raises CommandError if its token has expired."""
    found = _own_profile(ctx)
    if found is None:
        return None
    if found[1].token and found[1].is_expired:
        raise CommandError(
            f"the token of profile {found[0]} has expired",
            hint=f"log in again: moldau login --profile {found[0]}",
        )
    return found[1]


def _own_profile(ctx: click.Context) -> "tuple[str, Profile] | None":
    """The profile and its name. Without --profile it is not used for addresses that are not its
    own: a token must not be sent to another cluster."""
    from moldau.cli.connection.profiles import find_profile

    name, _ = _value(ctx, "profile")
    found = find_profile(name or "")
    if found is None or (not name and not _is_for(found[1], ctx)):
        return None
    return found


def _is_for(profile: "Profile", ctx: click.Context) -> bool:
    for parameter, field in _FIELDS.items():
        if parameter in ctx.params:
            own = set(getattr(profile, field).split(","))
            if not set(str(ctx.params[parameter]).split(",")) <= own:
                return False
    return True


def profile_address(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The callback of options with addresses: the profile's, if none is given."""
    if param.name not in _FIELDS or ctx.get_parameter_source(param.name) is not (
        ParameterSource.DEFAULT
    ):
        return value
    from moldau.cli.connection.profiles import Profile, load_profiles

    file = load_profiles()
    # A name that does not exist is reported later, except by login, which creates it.
    found = file.profiles.get(_value(ctx, "profile")[0] or file.current, Profile())
    return getattr(found, _FIELDS[param.name]) or value
