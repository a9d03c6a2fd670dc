"""The page: a Jinja2 template with autoescape on, because model output, problem texts and names are hostile."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core import __version__
from rloop_core.printable import visible
from rloop_core.results.plotting import Picture
from rloop_core.results.report.data import data_section
from rloop_core.results.report.evaluation import EvaluationRow
from rloop_core.results.report.lineage_page import lineage_section
from rloop_core.results.report.reading import theta_name

if TYPE_CHECKING:
    from rloop_core.results.report.write import RunReport

TEMPLATE = "report.html.j2"
_LARGE_SVG = 250_000


def render(parts: Sequence[tuple[RunReport, Mapping[str, Picture]]], content: str) -> str:
    """One HTML document of runs and their figures, without any outside reference; `content` is the key of it."""
    return fill_template(TEMPLATE, parts=[_context(*part) for part in parts], content=content)


def fill_template(name: str, **values: Any) -> str:
    """A page from a template of the report or the study: everything is escaped, and an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parents[1] / room for room in ("report", "compare", "study")]),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "capitalised": _capitalised,
        "share": share,
        "points": points,
        "seconds": duration,
        "size": size,
        "data_uri": _data_uri,
        "image_uri": image_uri,
    }
    page: str = environment.get_template(name).render(version=__version__, **values)
    return page


def _shown(value: Any) -> Any:
    """Control characters, and those that reorder what stands beside them, are written out."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _context(part: RunReport, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    run = part.run
    manifests = list(run.manifests.values())
    return {
        "name": run.name,
        "store": run.store.uri,
        "config": json.dumps(run.config.model_dump(mode="json"), indent=2, ensure_ascii=False),
        "seed": run.config.seed,
        "policy": run.config.policy.path,
        "problems": run.config.problems.label,
        "iterations": run.config.iterations,
        "done": len({manifest.iteration for manifest in manifests if manifest.stage == "rft"}),
        "seconds": sum(manifest.seconds for manifest in manifests),
        "updated": max((_minute(manifest.created_at) for manifest in manifests), default=""),
        "notes": run.notes,
        "tables": _tables(part.evaluation),
        "headlines": _headlines(part.evaluation),
        "selected": [(run.name, part.selected)] if part.selected else [],
        "pictures": pictures,
        "samples": part.samples,
        "data": data_section(run),
        "lineage": lineage_section(run, part.lineage),
        "theta_name": theta_name,
        "versions": {name: ", ".join(sorted(numbers)) for name, numbers in sorted(run.versions.items())},
        "drawn_by": run.drawn_by,
    }


def _tables(rows: Sequence[EvaluationRow]) -> list[dict[str, Any]]:
    """One table a problem set, with the metrics that any of its rows has."""
    tables = []
    for label in dict.fromkeys(row.problem_set for row in rows):
        own = [row for row in rows if row.problem_set == label]
        metrics = list(dict.fromkeys(name for row in own for name in row.metrics))
        tables.append({"label": label, "metrics": metrics, "rows": own})
    return tables


def _headlines(rows: Sequence[EvaluationRow]) -> list[dict[str, Any]]:
    """The last policy's avg@n and its pass@k of the greatest k on each set, against the base."""
    headlines = []
    for label in dict.fromkeys(row.problem_set for row in rows):
        last = [row for row in rows if row.problem_set == label][-1]
        passes = [name for name in last.metrics if name.startswith("pass@")]
        for name in dict.fromkeys([*list(last.metrics)[:1], *passes[-1:]]):
            difference = last.differences.get(name)
            headlines.append(
                {"set": label, "policy": last.policy, "metric": name, **last.metrics[name], "difference": difference}
            )
    return headlines


def _capitalised(text: str) -> str:
    """The first letter large, every other as it is."""
    return text[:1].upper() + text[1:]


def share(value: float | None) -> str:
    """0.1234 as "12.3"; percent by context."""
    return "" if value is None else f"{100 * value:.1f}"


def points(value: float | None) -> str:
    """A signed difference in percentage points."""
    return "" if value is None else f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def duration(value: float) -> str:
    """Seconds for people."""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def _minute(timestamp: str) -> str:
    from datetime import UTC, datetime

    return datetime.fromisoformat(timestamp).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def image_uri(figure: Picture) -> str:
    """The figure's vectors, or its pixels where those are much smaller: thousands of points make vectors large."""
    if len(figure.svg) > _LARGE_SVG and len(figure.svg) > 2 * len(figure.png):
        return f"data:image/png;base64,{base64.b64encode(figure.png).decode()}"
    return _data_uri(figure.svg)


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
