"""All parts measured so far as one Markdown table, ready for docs/results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Part, Row, Rows
from benchmarks.measure import markdown_table


def table(parts: Mapping[str, Part], out: Path) -> str:
    """Return heading and table; lines of parts that were never begun appear as not run.

    Args:
        parts: All parts, in the table's order.
        out: Folder of the rows.
    """
    contents = {name: Rows(out, name).read() for name in parts}
    on_gpu = any(found and found["machine"]["driver"] and not found["machine"]["small"] for found in contents.values())
    cells = [row for name, part in parts.items() for row in _cells(part, contents[name])]
    took = [f"{name} {found['seconds']:.0f} s" for name, found in contents.items() if found and found["seconds"]]
    return "\n".join(
        [
            "# Measured on a GPU" if on_gpu else "# Small, without a GPU: the script, not the speed",
            "",
            *_headings(contents),
            "",
            *markdown_table(("part", "what", "measured", "bar", "verdict"), cells),
            "",
            f"Took: {', '.join(took) or 'nothing yet'}.",
            "",
        ]
    )


def rows_of(part: Part, content: dict[str, Any] | None) -> dict[str, Row]:
    """Return the answer to each line of a part, by key."""
    answered = {row.key: row for row in content["rows"]} if content else {}
    why = "the part was ended before it got here" if content else "not yet"
    return {line.key: answered.get(line.key) or Row(line.key, "not run", "", why) for line in part.lines}


def _cells(part: Part, content: dict[str, Any] | None) -> Iterator[tuple[str, ...]]:
    for line, row in zip(part.lines, rows_of(part, content).values(), strict=True):
        verdict = f"**{row.verdict}**" if row.verdict in ("missed", "failed") else row.verdict
        judged = f"{verdict}: {row.why}" if row.why and verdict != "-" else row.why or verdict
        yield part.name, line.what, row.measured, line.bar, judged


def _headings(contents: Mapping[str, dict[str, Any] | None]) -> list[str]:
    """Return one line for each machine, date and commit, with its parts where there are several."""
    parts_of: dict[str, list[str]] = {}
    for name, content in contents.items():
        if content:
            parts_of.setdefault(_heading(content["machine"]), []).append(name)
    if len(parts_of) < 2:
        return list(parts_of) or ["Nothing measured yet."]
    return [f"- {heading} ({', '.join(names)})" for heading, names in parts_of.items()]


def _heading(machine: Mapping[str, Any]) -> str:
    device = machine["device"]
    if machine["driver"]:
        device += f" of {machine['memory_gib']} GiB, driver {machine['driver']}, {machine['cores']} CPU cores"
    small = ", small" if machine["small"] else ""
    libraries = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{device}{small}; {machine['date']}, commit {machine['commit']}; {libraries}"
