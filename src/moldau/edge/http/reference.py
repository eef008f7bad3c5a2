"""Generates docs/reference/http-api.md from the OpenAPI document.

`python -m moldau.edge.http.reference` writes the file; a test checks that it is current."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from moldau.edge.http.openapi import document

PAGE: Final = Path("docs/reference/http-api.md")
_HEAD: Final = """# HTTP: operations and schemas

Generated from the OpenAPI document (`GET /api/v1/openapi.json`) by `make docs`. For examples,
limits and metrics see [http.md](http.md).
"""

Schema = dict[str, Any]


def render() -> str:
    spec = document()
    lines = [_HEAD, "## Operations", ""]
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            lines += _operation(method.upper(), path, operation)
    lines += ["## Schemas", ""]
    for name, schema in sorted(spec["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip("\n") + "\n"


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield f"`{operation['operationId']}`: {operation['summary']}."
    yield ""
    parameters = operation.get("parameters", ())
    if parameters:
        yield "| parameter | in | type | |"
        yield "|---|---|---|---|"
        for parameter in parameters:
            schema = parameter["schema"]
            words = schema.get("description", "")
            yield (
                f"| `{parameter['name']}` | {parameter['in']} | {_type(schema)} | "
                f"{words or _default(schema)} |"
            )
        yield ""
    body = operation.get("requestBody")
    if body is not None:
        yield f"Body: {_type(body['content']['application/json']['schema'])}."
        yield ""
    yield "| status | response | |"
    yield "|---|---|---|"
    for status, response in operation["responses"].items():
        kinds = [_content(media, content) for media, content in response.get("content", {}).items()]
        yield f"| {status} | {', '.join(kinds)} | {response['description']} |"
    yield ""


def _content(media: str, content: Schema) -> str:
    if "schema" not in content:
        return f"`{media}`"
    problem = " (problem)" if "problem" in media else ""
    return _type(content["schema"]) + problem


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if schema.get("type") == "array":
        yield f"A list: {', '.join(_type(one) for one in schema.get('prefixItems', ()))}."
        yield ""
        return
    yield "| field | type | |"
    yield "|---|---|---|"
    required = schema.get("required", ())
    for field, kind in schema.get("properties", {}).items():
        words = "" if field in required else _default(kind) or "optional"
        yield f"| `{field}` | {_type(kind)} | {words} |"
    yield ""


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    return f"default `{default if isinstance(default, str) and default else json.dumps(default)}`"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        inner = schema.get("items")
        if isinstance(inner, dict):
            return f"list of {_type(inner)}{_bounds(schema, 'minItems', 'maxItems')}"
        return "list of " + ", ".join(_type(one) for one in schema.get("prefixItems", ()))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{kind}{_bounds(schema, 'minimum', 'maximum')}"


def _bounds(schema: Schema, least: str, most: str) -> str:
    if least not in schema and most not in schema:
        return ""
    return f" {schema.get(least, '')}–{schema.get(most, '')}"


def main() -> None:
    PAGE.write_text(render())
    sys.stderr.write(f"{PAGE} written\n")


if __name__ == "__main__":
    main()
