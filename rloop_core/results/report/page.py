"""HTML pages: Jinja2 templates with autoescape on, because model output, problem texts and names are hostile."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.printable import visible
from rloop_core.results.plotting import Picture
from rloop_core.results.tables import duration, points, share, size

_LARGE_SVG = 250_000


def fill_template(name: str, **values: Any) -> str:
    """Return a page from a template of the report, the comparison or the study; an unknown name in it is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader([room, room.with_name("compare"), room.with_name("study")]),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "capitalised": lambda text: text[:1].upper() + text[1:],
        "share": share,
        "points": points,
        "seconds": duration,
        "size": size,
        "image_uri": image_uri,
    }
    page: str = environment.get_template(name).render(version=__version__, **values)
    return page


def _visible(value: Any) -> Any:
    """Write out control characters, and those that reorder the text beside them."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def image_uri(figure: Picture) -> str:
    """Return the figure as SVG, or as PNG if that is much smaller: thousands of points make an SVG large."""
    if len(figure.svg) > _LARGE_SVG and len(figure.svg) > 2 * len(figure.png):
        kind, content = "png", figure.png
    else:
        kind, content = "svg+xml", figure.svg
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
