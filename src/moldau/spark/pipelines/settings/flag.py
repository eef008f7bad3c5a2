"""How the command line offers a setting, and the settings that several kinds have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from moldau.spark.formats import Format, Framing
from moldau.spark.lake.model import TABLES


@dataclass(frozen=True, slots=True)
class Flag:
    """The option of a setting, beside the type and the default of its field."""

    help: str
    metavar: str = ""
    """What the value is: `moldau.cli.pipeline.kind_options` parses and completes it accordingly."""
    name: str = ""
    """Default: the name of the field."""
    choices: tuple[str, ...] = ()
    least: int = 1
    """The lower bound of a number."""
    is_optional: bool = False
    """Although there is no default: another option can take its place."""

    def option(self, setting: str) -> str:
        """The option of the setting that has this flag."""
        return self.name or f"--{setting.replace('_', '-')}"


Topics = Annotated[tuple[str, ...], Flag("Topic to read.", "TOPIC", "--topic")]
TableFormatText = Annotated[str, Flag("Format of the table.", name="--format", choices=TABLES)]
Storage = Annotated[
    Mapping[str, str],
    Flag(
        "Storage option, as deltalake names it (AWS_ENDPOINT_URL=…) or, for Iceberg, pyiceberg "
        "(s3.endpoint=…, type=rest, uri=…, token=…)"
    ),
]
Decode = Annotated[str, Flag("Format of values; raw keeps bytes.", choices=tuple(Format))]
FramingText = Annotated[str, Flag("Header before each encoded value.", choices=tuple(Framing))]
RegistryLocation = Annotated[
    str | None,
    Flag(
        "Schemas of values with --framing confluent: a schema registry, or a folder with a file "
        "for each id (17.avsc).",
        "URL|FOLDER",
    ),
]
RegistryOptions = Annotated[
    Mapping[str, str],
    Flag(
        "Option of the registry's client, as basic.auth.user.info=NAME:PASSWORD",
        name="--registry-option",
    ),
]
