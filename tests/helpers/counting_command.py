"""The command line of `counting_kind`."""

import click

SUMMARY = "Count, and do nothing else."
EXAMPLES = (
    "moldau pipeline run count clicks",
    "moldau pipeline run count clicks orders --rows 20",
    "moldau pipeline run count clicks --ill",
)
OPTIONS = (
    click.argument("topics", nargs=-1, required=True),
    click.option("--rows", type=int, default=10, help="How far."),
    click.option("--fail", default="", help="Fail like this."),
    click.option(
        "--ill", "is_well", flag_value=False, default=True, help="Say that something is not well."
    ),
)
