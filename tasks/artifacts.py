"""Artifacts in the UI: tables, figures and texts under keys that name the run, and those that each stage leaves."""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run, task_run

from rloop_core.evaluation.metrics import metrics_of
from rloop_core.printable import without_secrets
from rloop_core.results.page import image_uri
from rloop_core.results.plotting import Picture
from rloop_core.store import Manifest
from tasks.session import RunSession


@dataclass(frozen=True)
class Origin:
    """The task run and the flow run that an artifact belongs to; either may be missing."""

    task_run: UUID | None
    flow_run: UUID | None

    @classmethod
    def current(cls) -> "Origin":
        """Return the runs of the calling code."""
        task, flow = task_run.id, flow_run.id
        return cls(UUID(str(task)) if task else None, UUID(str(flow)) if flow else None)

    def table(self, name: str, rows: list[dict[str, Any]], description: str) -> ArtifactCreate:
        """Return a table of these rows, not yet sent; the UI renders texts in cells as Markdown."""
        cells = [{column: _cell(value) for column, value in row.items()} for row in rows]
        return self._artifact("table", name, without_secrets(json.dumps(cells)), description)

    def markdown(self, name: str, text: str, description: str) -> ArtifactCreate:
        """Return a text in Markdown, not yet sent."""
        return self._artifact("markdown", name, without_secrets(text), description)

    def figure(self, name: str, picture: Picture, description: str) -> ArtifactCreate:
        """Return a picture with its caption, not yet sent."""
        return self._artifact("markdown", name, _figure_markdown(picture), description)

    def _artifact(self, kind: str, name: str, data: str, description: str) -> ArtifactCreate:
        return ArtifactCreate(
            type=kind,
            key=artifact_key(name),
            data=data,
            description=escape_markdown(without_secrets(description)),
            task_run_id=self.task_run,
            flow_run_id=self.flow_run,
        )


def publish(made: ArtifactCreate) -> None:
    """Send an artifact to the UI now."""
    with get_client(sync_client=True) as client:
        client.create_artifact(made)


def artifact_key(name: str) -> str:
    """Return a name as an artifact key: Prefect allows lower-case letters, digits and dashes only."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows literally; model output, problem texts and names are hostile."""
    return re.sub(r"([\\`*_{}\[\]#!|<>~$&])", r"\\\1", text)


def code_markdown(text: str) -> str:
    """Return a text as a code span that it cannot leave."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def show_result(run: RunSession, manifest: Manifest, name: str, losses: list[float]) -> None:
    """Show a stage's new artifact: a table of its key figures and a figure, sent while the next stages compute.

    Args:
        run: The open run.
        manifest: The artifact's manifest.
        name: `<run>-000-explore`, the prefix of the keys.
        losses: The losses of fine-tuning's updates, from its progress events.
    """
    place = f"iteration {manifest.iteration}" if manifest.iteration >= 0 else "base"
    where = f"{run.config.name}, {place}: {manifest.stage}"
    rows, title = _key_figures(manifest), f"{where}, {manifest.digest[:12]}"
    if manifest.reason:
        title = f"{title}; computed again ({manifest.reason})"
    publisher = run.publisher()
    if publisher is None:
        with suppress(Exception):  # the store has all of it
            publish(Origin.current().table(name, rows, title))
        return
    origin = Origin.current()
    table = origin.table(name, rows, title)

    def send_figure(client: SyncPrefectClient) -> None:
        # The publisher's thread draws it: loading matplotlib takes seconds, and no stage waits for that.
        picture = run.figures().draw(manifest, losses)
        if picture is not None:
            made = client.create_artifact(origin.figure(f"{name}-figure", picture, f"{where}: {picture.title}"))
            run.pages[name] = f"/artifacts/artifact/{made.id}"

    publisher.submit(f"table of {name}", lambda client: client.create_artifact(table))
    publisher.submit(f"figure of {name}", send_figure)


def metric_rows(label: str, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of an evaluation on one problem set, in percent, a row each."""
    return [
        {
            "set": label,
            "metric": name,
            "value": f"{metric['value']:.2%}",
            "95 % interval": f"{metric['low']:.2%} to {metric['high']:.2%}",
        }
        for name, metric in metrics_of(summary).items()
    ]


def _key_figures(manifest: Manifest) -> list[dict[str, Any]]:
    """Return a row for each count and metric; for an evaluation a row for each problem set and metric."""
    if manifest.stage == "evaluate":
        return [row for label, summary in manifest.metrics.items() for row in metric_rows(label, summary)]
    figures = {**manifest.counts, **manifest.metrics, "seconds": manifest.seconds}
    figures.pop("seconds_by_step", None)
    return [{"figure": name, "value": _shown(value)[:500]} for name, value in figures.items()]


def _shown(value: Any) -> str:
    """Return a value of a manifest as a reader would write it."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_shown(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figure_markdown(picture: Picture) -> str:
    """Return a picture inside a text: the UI does not show image artifacts whose data is in the URI."""
    title = escape_markdown(picture.title)
    return f"### {title}\n\n![{title}]({image_uri(picture)})\n\n{escape_markdown(picture.caption)}\n"


def _cell(value: Any) -> Any:
    """Return a value as a table's cell; JSON has no NaN, so it becomes null."""
    if isinstance(value, str):
        return escape_markdown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
