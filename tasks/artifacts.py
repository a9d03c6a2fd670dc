"""Tables in the UI, under keys that name the run."""

import re
from typing import Any

from prefect.artifacts import create_table_artifact


def publish_table(name: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show rows in the UI; Prefect takes keys of lower-case letters, digits and dashes alone."""
    key = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    create_table_artifact(key=key, table=rows, description=description)
