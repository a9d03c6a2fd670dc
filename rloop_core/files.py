"""Small local files that appear whole or not at all, whenever the process dies, and the sizes of any."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file under a temporary name and rename it: readers see the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes of all files below a folder, by relative path; an empty dictionary if it is not there."""
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
