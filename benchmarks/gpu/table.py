"""All parts measured so far as one Markdown table, ready for docs/results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Part
from benchmarks.gpu.row import Row, Rows

NOT_YET = "not yet"


def table(parts: Mapping[str, Part], out: Path) -> str:
    """Heading and table; lines of parts that were never begun are among them, as not run.

    Args:
        parts: All parts, in the table's order.
        out: Folder of the rows.
    """
    read = {name: Rows(out / "rows" / f"{name}.json").read() for name in parts}
    lines = ["# Measured on a GPU" if _on_gpus(read) else "# Small, without a GPU: the script, not the speed", ""]
    lines += [*_headings(read), "", "| part | what | measured | bar | verdict |", "|---|---|---|---|---|"]
    for name, part in parts.items():
        lines += [_line(name, *cells) for cells in _cells(part, read[name])]
    took = [f"{name} {found['seconds']:.0f} s" for name, found in read.items() if found and found["seconds"]]
    return "\n".join([*lines, "", f"Took: {', '.join(took) or 'nothing yet'}.", ""])


def rows_of(part: Part, found: dict[str, Any] | None) -> dict[str, Row]:
    """The answer to each line of a part, by key."""
    answered = {row.key: row for row in found["rows"]} if found else {}
    why = "the part was ended before it got here" if found else NOT_YET
    return {line.key: answered.get(line.key) or Row(line.key, "not run", "", why) for line in part.lines}


def _cells(part: Part, found: dict[str, Any] | None) -> Iterator[tuple[str, str, str, str]]:
    for line, row in zip(part.lines, rows_of(part, found).values(), strict=True):
        verdict = {"missed": "**missed**", "failed": "**failed**"}.get(row.verdict, row.verdict)
        said = f"{verdict}: {row.why}" if row.why and verdict != "-" else row.why or verdict
        yield line.what, row.measured, line.bar, said


def _headings(read: Mapping[str, dict[str, Any] | None]) -> list[str]:
    """One line a machine, date and commit; with the parts that it holds for where there are several."""
    named: dict[str, list[str]] = {}
    for name, found in read.items():
        if found:
            named.setdefault(_heading(found["machine"]), []).append(name)
    if len(named) < 2:
        return list(named) or ["Nothing measured yet."]
    return [f"- {heading} ({', '.join(names)})" for heading, names in named.items()]


def _heading(machine: Mapping[str, Any]) -> str:
    device = machine["device"]
    if machine["driver"]:
        device += f" of {machine['memory_gib']} GiB, driver {machine['driver']}, {machine['cores']} CPU cores"
    small = ", small" if machine["small"] else ""
    libraries = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{device}{small}; {machine['date']}, commit {machine['commit']}; {libraries}"


def _on_gpus(read: Mapping[str, dict[str, Any] | None]) -> bool:
    return any(found and found["machine"]["driver"] and not found["machine"]["small"] for found in read.values())


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
