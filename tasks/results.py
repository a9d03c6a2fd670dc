"""What a finished stage leaves in the UI: a table of its key figures, and a picture."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from prefect.client.orchestration import SyncPrefectClient

from rloop_core.store import Manifest
from tasks.artifacts import Origin, publish_table
from tasks.session import RunSession


def show_result(run: RunSession, manifest: Manifest, name: str, losses: list[float]) -> None:
    """Show a new artifact: at once where nobody could look, else beside the stages that follow.

    Args:
        run: The open run.
        manifest: Of the artifact.
        name: `<run>-000-explore`; the keys begin with it.
        losses: Of fine-tuning's updates, as it told them.
    """
    place = f"iteration {manifest.iteration}" if manifest.iteration >= 0 else "base"
    where = f"{run.config.name}, {place}: {manifest.stage}"
    rows, title = _key_figures(manifest), f"{where}, {manifest.digest[:12]}"
    desk = run.desk()
    if desk is None:
        with suppress(Exception):  # the store has all of it
            publish_table(name, rows, title)
        return
    origin = Origin.here()
    table = origin.table(name, rows, title)

    def send_figure(client: SyncPrefectClient) -> None:
        # Drawn in the desk's thread: what draws takes seconds to load, and no stage has to wait for it.
        picture = run.figures().of(manifest, losses)
        if picture is not None:
            made = client.create_artifact(origin.figure(f"{name}-figure", picture, f"{where}: {picture.title}"))
            run.pages[name] = f"/artifacts/artifact/{made.id}"

    desk.post(f"table of {name}", lambda client: client.create_artifact(table))
    desk.post(f"figure of {name}", send_figure)


def _key_figures(manifest: Manifest) -> list[dict[str, Any]]:
    """A row a count or metric; of an evaluation a row a set and metric, with its interval."""
    if manifest.stage == "evaluate":
        return [row for label, summary in manifest.metrics.items() for row in metric_rows(label, summary)]
    figures = {**manifest.counts, **manifest.metrics, "seconds": manifest.seconds}
    return [{"figure": name, "value": _short(value)} for name, value in figures.items() if name != "seconds_by_step"]


def metric_rows(label: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics of an evaluation on one set, in percent."""
    return [
        {
            "set": label,
            "metric": name,
            "value": f"{one['value']:.2%}",
            "95 % interval": f"{one['low']:.2%} to {one['high']:.2%}",
        }
        for name, one in summary.items()
        if isinstance(one, dict) and "low" in one
    ]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)[:500]
