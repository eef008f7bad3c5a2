"""The query of the pipeline `aggregate`: --sql or --sql-file."""

from pathlib import Path
from typing import Any

from moldau.client.errors import InvalidArgumentError


def read_query(values: dict[str, Any]) -> None:
    """Replace `sql_file` by `sql`. Raises InvalidArgumentError unless there is one of both."""
    file = values.pop("sql_file")
    if (values["sql"] is None) == (file is None):
        raise InvalidArgumentError("give the query with either --sql or --sql-file")
    if file is not None:
        try:
            values["sql"] = Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"cannot read --sql-file {file}: {error}") from None
