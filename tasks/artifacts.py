"""Artifacts in the UI, under keys that name the run: a stage's key figures and its figure."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.utilities.context import get_task_and_flow_run_ids

from rloop_core.evaluation.metrics import metrics_of
from rloop_core.printable import without_secrets
from rloop_core.results.plotting import Picture
from rloop_core.store import BASE_ITERATION, Manifest
from tasks.session import RunSession

_REQUEST_SECONDS = 5.0


def publish(kind: str, name: str, data: Any, description: str, known: UUID | None = None) -> UUID | None:
    """Create an artifact of the current task run, or update a known one; return its id.

    A server that does not answer delays the caller for seconds; then a line of the log says so, and None is returned.

    Args:
        kind: `table`, `markdown` or `progress`.
        name: Its name, which becomes its key.
        data: Rows of a table, a text in Markdown, or percent of progress.
        description: Plain text.
        known: The artifact to update.
    """
    description = escape_markdown(without_secrets(description))
    try:
        with (
            temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 1}),
            get_client(sync_client=True, httpx_settings={"timeout": _REQUEST_SECONDS}) as client,
        ):
            if known is not None:
                client.update_artifact(known, ArtifactUpdate(data=data, description=description))
                return known
            task, flow = get_task_and_flow_run_ids()
            key = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")  # Prefect allows no other characters
            made = ArtifactCreate(
                type=kind, key=key, data=data, description=description, task_run_id=task, flow_run_id=flow
            )
            return client.create_artifact(made).id
    except Exception as error:  # the store has all of it
        get_run_logger().warning("%s could not be shown: %s: %s", name, type(error).__name__, error)
        return None


def publish_table(name: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show a table of these rows; the UI renders texts in cells as Markdown."""
    cells = [{column: _cell(value) for column, value in row.items()} for row in rows]
    publish("table", name, without_secrets(json.dumps(cells)), description)


def show_result(run: RunSession, manifest: Manifest, name: str) -> None:
    """Show a stage's new artifact: a table of its key figures, and a figure.

    Args:
        run: The open run, with a UI.
        manifest: The artifact's manifest.
        name: `<run>-000-explore`, the prefix of the keys.
    """
    place = f"iteration {manifest.iteration}" if manifest.iteration >= 0 else "base"
    where = f"{run.config.name}, {place}: {manifest.stage}"
    again = f"; computed again ({manifest.reason})" if manifest.reason else ""
    publish_table(name, key_figures(manifest), f"{where}, {manifest.digest[:12]}{again}")
    try:
        picture = figure_of(run, manifest)
    except Exception as error:  # a figure must not end a stage
        get_run_logger().warning("the figure of %s could not be drawn: %s", name, error)
        return
    if picture is not None:
        publish("markdown", f"{name}-figure", figure_markdown(picture), f"{where}: {picture.title}")


def figure_of(run: RunSession, manifest: Manifest) -> Picture | None:
    """Return the figure of a stage's artifact, of an evaluation with the base's; None if there is nothing to draw."""
    from rloop_core.results.curves import policy_curves, step_curves, success_rate_figure
    from rloop_core.results.findings import run_results
    from rloop_core.results.run_reader import RunRecord, success_rates
    from rloop_core.results.table import by_step

    stage, iteration = manifest.stage, manifest.iteration
    places = [(iteration, stage), *([(BASE_ITERATION, stage)] if stage == "evaluate" else [])]
    manifests = {place: run.manifests[place] for place in sorted(places) if place in run.manifests}
    record = RunRecord(run.config.name, run.config, run.runner.store, run.runner.scratch() / "cache", manifests)
    if stage == "explore":
        return step_curves(run_results(record), "training")
    if stage == "harvest":
        return success_rate_figure(record, success_rates(record))
    if stage != "evaluate":
        return None
    results = run_results(record, snapshots=False)
    return policy_curves(results, by_step(results), iterations=True)


def figure_markdown(picture: Picture) -> str:
    """Return a picture with its caption as a text: the UI does not show image artifacts whose data is in the URI."""
    title = escape_markdown(picture.title)
    return f"### {title}\n\n![{title}]({picture.uri})\n\n{escape_markdown(picture.caption)}\n"


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


def key_figures(manifest: Manifest) -> list[dict[str, Any]]:
    """Return a row for each count and metric; for an evaluation a row for each problem set and metric."""
    if manifest.stage == "evaluate":
        return [row for label, summary in manifest.metrics.items() for row in metric_rows(label, summary)]
    values = {**manifest.counts, **manifest.metrics, "seconds": manifest.seconds}
    values.pop("seconds_by_step", None)
    return [{"figure": name, "value": _shown(value)[:500]} for name, value in values.items()]


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows literally; model output, problem texts and names are hostile."""
    return re.sub(r"([\\`*_{}\[\]#!|<>~$&])", r"\\\1", text)


def code_markdown(text: str) -> str:
    """Return a text as a code span that it cannot leave."""
    return f"`{' '.join(text.replace('`', ' ').split())}`"


def _shown(value: Any) -> str:
    """Return a value of a manifest as a reader would write it."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_shown(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> Any:
    """Return a value as a table's cell; JSON has no NaN, so it becomes null."""
    if isinstance(value, str):
        return escape_markdown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
