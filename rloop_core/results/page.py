"""HTML pages with the files beside them; autoescape is on: model output, problem texts and names are hostile."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.errors import StoreError
from rloop_core.printable import visible
from rloop_core.results.plotting import Picture
from rloop_core.results.tables import Table, duration, points, share, size
from rloop_core.store import Store

_LARGE_SVG = 250_000


def fill_template(name: str, **values: Any) -> str:
    """Return a page from a template of the report, the comparison or the study; an unknown name in it is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    room = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader([room, *(room / page for page in ("report", "compare", "study"))]),
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


def default_folder(store: Store, runs: Sequence[str], name: str) -> Path:
    """Return `<store>/<first run>/<name>` in a local store, else `.rloop/reports/<run>[+<run>]`; "" is no name."""
    if store.is_local and name:
        return store.local_path(f"{runs[0]}/{name}")
    return Path(".rloop/reports") / "+".join(runs)


@contextmanager
def writable_folder(out: Path) -> Iterator[None]:
    """Make a folder before the work that fills it, so that a bad one is known at once.

    Raises:
        StoreError: The folder, or a file in it, cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error


def write_files(
    out: Path, pictures: Iterable[Picture], tables: Iterable[Table], texts: Mapping[str, str], prefix: str = ""
) -> None:
    """Write pictures as PNG and CSV, tables as CSV, and texts by file name into a folder that exists."""
    for picture in pictures:
        picture.write(out, prefix)
    for table in tables:
        (out / f"{prefix}{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    for name, text in texts.items():
        (out / f"{prefix}{name}").write_text(text, encoding="utf-8")
