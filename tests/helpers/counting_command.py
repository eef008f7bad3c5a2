"""The command line of `counting_kind`."""

from typing import Any

import click
from counting_kind import CountSettings

from moldau.cli.pipeline_common import Common

SUMMARY = "Count, and do nothing else."
EXAMPLES = (
    "moldau pipeline run count clicks",
    "moldau pipeline run count clicks orders --rows 20",
    "moldau pipeline run count clicks --ill",
)
OPTIONS = (
    click.argument("topics", nargs=-1, required=True),
    click.option("--rows", type=int, default=10, help="How far."),
    click.option("--password", default="", help="Not told to anybody."),
    click.option("--fail", default="", help="Fail like this."),
    click.option("--ill", is_flag=True, help="Say that something is not well."),
)


def settings(common: Common, *, ill: bool, **values: Any) -> CountSettings:
    return CountSettings(**common.fields(), **values, is_well=not ill)
