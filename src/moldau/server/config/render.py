"""Renders the schema: the file of `moldau config init`, and the reference page.

`python -m moldau.server.config.render` prints docs/reference/configuration.md; a test compares.
"""

import json
import sys
import textwrap
from collections.abc import Mapping

from moldau.server.config.keys import ALIASES, KEYS, OTHER_VARIABLES, SECTIONS, Key
from moldau.server.config.values import describe, format_value

_FILE_HEAD = """\
# Configuration of a Moldau broker.
#
# Every setting with its default, commented out: remove the # before those that you change.
# Units of durations: ms, s, m, h, d, w; of sizes: B, KiB, MiB, GiB, TiB.
# Flags win over the environment (MOLDAU_LOG__FLUSH=never), which wins over this file.
# What is in force, and why:  moldau config show --config FILE
"""


def render_file(values: Mapping[str, object] | None = None) -> str:
    """A broker.yaml with every setting; those in `values` are set, the others commented out.

    Keys are not nested, so that each line can be uncommented on its own.
    """
    chosen = values or {}
    parts = [_FILE_HEAD, "\n", _file_keys("", chosen)]
    for section in SECTIONS.values():
        parts.append(f"\n\n# ---- {section.doc} ----\n\n")
        parts.append(_file_keys(section.name, chosen))
    return "".join(parts) + "\n"


def _file_keys(section: str, chosen: Mapping[str, object]) -> str:
    lines = []
    for key in KEYS.values():
        if key.section != section:
            continue
        lines += textwrap.wrap(key.setting.doc, 98, initial_indent="# ", subsequent_indent="# ")
        mark, value = ("", chosen[key.name]) if key.name in chosen else ("#", key.default)
        lines.append(f"{mark}{key.name}: {_yaml(key, value)}")
    return "\n".join(lines)


def _yaml(key: Key, value: object) -> str:
    text = format_value(key, value)
    quoted = isinstance(value, str | tuple) and not text.replace("_", "").isalpha()
    return json.dumps(text) if quoted else text


_PAGE_HEAD = """\
# Configuration

<!-- Generated from src/moldau/server/config/schema.py by `python -m moldau.server.config.render`.
     Do not edit: change the schema and run it again. -->

A broker needs no configuration: `moldau dev`, and the first `moldau broker start --bootstrap`, run
on the defaults below.
**Flags** win over the **environment**, which wins over the **file** (`--config FILE` or
`MOLDAU_CONFIG`), which wins over the defaults. All values are checked once, at the start; an error
names the key, the value and where it was set. A broker does not start with an invalid
configuration.

```console
$ moldau config init broker.yaml          # writes a file with every setting and its default
$ moldau config show --config broker.yaml # each value in force, with its source
$ MOLDAU_LOG__FLUSH=never moldau broker start --config broker.yaml --set topic.partitions=6
```

| layer | how | `log.flush` there |
|---|---|---|
| flag | its own option, or `--set KEY=VALUE` | `--set log.flush=never` |
| environment | `MOLDAU_` and the key in capitals, each dot as two underscores | \
`MOLDAU_LOG__FLUSH=never` |
| `.yaml`, `.yml` | nested, or the whole key | `log: {flush: never}` |
| `.toml` | tables | `[log]`, then `flush = "never"` |
| `.json` | nested, or the whole key | `{"log": {"flush": "never"}}` |
| `.ini` | sections; top-level keys come first or in `[moldau]` | `[log]`, then `flush = never` |
| `.properties` | the whole key | `log.flush=never` |
| `.env` | as in the environment; other variables are ignored | `MOLDAU_LOG__FLUSH=never` |

- **Durations** are numbers in the unit of the key's name, or carry `ms`, `s`, `m`, `h`, `d`, `w`.
- **Sizes** are bytes, or carry `KiB`, `MiB`, `GiB`, `TiB` (also `K`, `M`, `G`, `T`); \
`KB`, `MB`, `GB`, `TB` count by 1000.
- **Addresses** are `HOST:PORT` (`[::1]:9092` for IPv6); without a host, loopback is used. \
Port 0 selects any free port.
- An unknown key or `MOLDAU_` variable is an error; the most similar one is suggested.
- **Passwords** are set by a file or the environment, never by a flag, and are not shown again.

A listener that does not authenticate its clients must be bound to loopback. Otherwise the broker
does not start, unless `--insecure` (`security.insecure`) says that everyone may use it.
"""

_NAMED = """
## Named listeners

`listeners` holds listeners by name, in place of the address of one or more sections: a protocol
that it contains has no other listeners, and the settings of its section that describe a listener
(`kafka.addr`, `kafka.security`, `http.authentication`…) are refused: set them in the listener.
There may be several of `kafka`, and one of `grpc`, `http` and `peers`. The limits of the section
`kafka` are those of each Kafka listener.

```yaml
security:
  cert_file: certs/broker.pem
  key_file: certs/broker.key
  client_ca_file: certs/ca.pem
listeners:
- name: internal
  protocol: kafka
  address: 10.0.0.5:9092
  security: mtls
- name: public
  protocol: kafka
  address: 0.0.0.0:9093
  advertised: queue.example:9093
  security: tls
  sasl: [SCRAM-SHA-256, SCRAM-SHA-512]
- name: web
  protocol: http
  address: 127.0.0.1:8080
  read_only: true
```

| key | meaning |
|---|---|
| `name` | its name in logs and metrics |
| `protocol` | `kafka`, `grpc`, `http`, or `peers` for other brokers |
| `address` | where it is bound |
| `advertised` | the address that clients connect to; the bound one if unset |
| `security` | `plaintext` (default), `tls`, or `mtls`: TLS with client certificates |
| `sasl` | SASL mechanisms of a Kafka listener |
| `authentication` | of gRPC and HTTP: `none` (default), or `users` |
| `read_only` | refuse all requests that change something |
| `cert_file`, `key_file`, `client_ca_file` | in place of those of the section `security` |

In the environment the list is JSON: `MOLDAU_LISTENERS='[{"name": "public", …}]'`.
"""


def render_page() -> str:
    parts = [_PAGE_HEAD, "\n## The broker\n\n", _table("")]
    for section in SECTIONS.values():
        parts += [f"\n## `{section.name}`\n\n{section.doc}\n\n", _table(section.name)]
    parts.append(_NAMED)
    parts.append("\n## Aliases\n\n| key | means |\n|---|---|\n")
    parts += [f"| `{name}` | {alias.doc} |\n" for name, alias in ALIASES.items()]
    parts.append("\n## Other variables\n\n| variable | meaning |\n|---|---|\n")
    parts += [f"| `{name}` | {doc} |\n" for name, doc in OTHER_VARIABLES.items()]
    parts.append("| `NO_COLOR` | Plain output without colours, if set to anything. |\n")
    return "".join(parts)


def _table(section: str) -> str:
    rows = ["| key | default | meaning |\n|---|---|---|\n"]
    for key in KEYS.values():
        if key.section == section:
            default = "unset" if key.default is None else f"`{format_value(key, key.default)}`"
            rows.append(f"| `{key.name}` | {default} | {describe(key)}{_runtime(key)} |\n")
    return "".join(rows)


def _runtime(key: Key) -> str:
    name = key.setting.runtime
    return f" At run time: `moldau cluster config set {name}=…`." if name else ""


if __name__ == "__main__":
    sys.stdout.write(render_page())
