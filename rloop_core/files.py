"""Small local files that appear whole or not at all, whenever the process dies."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it: readers see the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
