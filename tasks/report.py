"""The report as a task: written into the store at the end of a run, and linked in the UI with its summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient

from rloop_core.results.report import figures
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows, evaluation_tables, result_sentence
from rloop_core.results.report.page import image_uri
from rloop_core.results.report.selection import read_selected
from rloop_core.results.report.write import HTML_FILE, write_report
from rloop_core.results.run_record import RunRecord, read_run
from rloop_core.stages.job import STAGES
from rloop_core.store import Store
from tasks.artifacts import Origin, artifact_key, as_text
from tasks.session import RunSession
from tasks.tags import untagged_task

_MOST_LINKED = 3


@untagged_task(name="report", task_run_name="report")
def report(run: RunSession) -> str:
    """Write the run's report into its store and show the summary; returns the result in one sentence."""
    store, name = run.runner.store, run.config.name
    cache = run.runner.scratch() / "cache"
    record = read_run(store, name, cache)
    rows = evaluation_rows(record)
    uri = store_report(store, name, run.runner.scratch() / name / "report", cache)
    sentence = result_sentence(run.config, rows)
    desk = run.desk()
    if desk is not None:
        text, origin = _summary(record, rows, uri, sentence), Origin.here()

        def send(client: SyncPrefectClient) -> None:
            # Last of all, when the desk has made the figures that it links.
            made = origin.markdown(f"{name}-report", f"{text}\n\n{_links(record, run.pages)}", sentence)
            client.create_artifact(made)

        desk.post(f"report of {name}", send)
    return sentence


def store_report(store: Store, run: str, scratch: Path, cache: Path) -> str:
    """Write `<store>/<run>/report/`; its page's URI. What shows these very artifacts already is let be."""
    if store.is_local:
        return str(write_report(store, [run], None, cache, keep_current=True))
    page = scratch / HTML_FILE
    before = page.stat().st_mtime_ns if page.is_file() else None
    write_report(store, [run], scratch, cache, keep_current=True)
    key = f"{run}/report/{HTML_FILE}"
    if before != page.stat().st_mtime_ns or not store.exists(key):
        # The page last: while it is there, so are the files beside it.
        for path in sorted(scratch.iterdir(), key=lambda path: path.name == HTML_FILE):
            store.upload(path, f"{run}/report/{path.name}")
    return store.uri_of(key)


def _summary(record: RunRecord, rows: Sequence[EvaluationRow], uri: str, sentence: str) -> str:
    chosen = read_selected(record)
    notes = [f"Selected: {chosen.sentence()}"] if chosen else []
    drawn = figures.gains(list(rows))
    parts = [
        f"## {as_text(record.name)}",
        as_text(sentence),
        "\n".join(table.to_markdown(as_text) for table in evaluation_tables(rows)),
        f"![{as_text(drawn.title)}]({image_uri(drawn)})" if drawn else "",
        "\n".join(f"- {as_text(note)}" for note in [*notes, *record.notes]),
        f"**Report:** `{uri}`",
        f"To open it from anywhere:\n\n```\nrloop report {record.name} --store {record.store.uri}\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def _links(record: RunRecord, pages: Mapping[str, str]) -> str:
    """The figures of the last iterations; of one that was made by an earlier run, the list of its versions."""
    lines = []
    for iteration in record.iterations[-_MOST_LINKED:]:
        links = []
        for stage in (stage for stage in STAGES if record.manifest(iteration, stage)):
            name = f"{record.name}-{iteration:03d}-{stage}"
            links.append(f"[{stage}]({pages.get(name) or f'/artifacts/key/{artifact_key(name)}-figure'})")
        lines.append(f"- iteration {iteration}: {', '.join(links)}")
    return "\n".join(["Figures:", "", *lines]) if lines else ""
