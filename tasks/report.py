"""The task that writes a run's report into its store, and shows its summary in the UI."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient

from rloop_core.results.page import image_uri
from rloop_core.results.report import figures
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows, evaluation_tables, result_sentence
from rloop_core.results.report.write import HTML_FILE, write_report
from rloop_core.results.run_reader import RunRecord, read_run
from rloop_core.results.selection import read_selected
from rloop_core.stages.registry import STAGES
from rloop_core.store import Store
from tasks.artifacts import Origin, artifact_key, code_markdown, escape_markdown
from tasks.prefect_workarounds import untagged_task
from tasks.session import RunSession

_MOST_LINKED = 3


@untagged_task(name="report", task_run_name="report")
def report(run: RunSession) -> str:
    """Write the run's report into its store, show the summary, and return the result in one sentence."""
    store, name = run.runner.store, run.config.name
    cache = run.runner.scratch() / "cache"
    record = read_run(store, name, cache)
    rows = evaluation_rows(record)
    uri = store_report(store, name, run.runner.scratch() / name / "report", cache)
    sentence = result_sentence(run.config, rows)
    if publisher := run.publisher():
        text, origin = _summary(record, rows, uri, sentence), Origin.current()

        def send(client: SyncPrefectClient) -> None:
            # Called after the figures were sent, so their pages are known.
            made = origin.markdown(f"{name}-report", f"{text}\n\n{_links(record, run.pages)}", sentence)
            client.create_artifact(made)

        publisher.submit(f"report of {name}", send)
    return sentence


def store_report(store: Store, run: str, scratch: Path, cache: Path) -> str:
    """Write `<store>/<run>/report/` unless it shows these artifacts already; return its page's URI."""
    if store.is_local:
        return str(write_report(store, [run], None, cache, keep_current=True))
    page = scratch / HTML_FILE
    before = page.stat().st_mtime_ns if page.is_file() else None
    write_report(store, [run], scratch, cache, keep_current=True)
    key = f"{run}/report/{HTML_FILE}"
    if before != page.stat().st_mtime_ns or not store.exists(key):
        upload_folder(store, page, f"{run}/report")
    return store.uri_of(key)


def upload_folder(store: Store, main: Path, prefix: str) -> str:
    """Upload the folder of a main file, such as a page, the main file last; return the main file's URI."""
    files = [path for path in sorted(main.parent.rglob("*")) if path.is_file() and path != main]
    for path in [*files, main]:
        store.upload(path, f"{prefix}/{path.relative_to(main.parent).as_posix()}")
    return store.uri_of(f"{prefix}/{main.name}")


def _summary(record: RunRecord, rows: Sequence[EvaluationRow], uri: str, sentence: str) -> str:
    chosen = read_selected(record)
    notes = [f"Selected: {chosen.sentence()}"] if chosen else []
    picture = figures.gains(list(rows))
    parts = [
        f"## {escape_markdown(record.name)}",
        escape_markdown(sentence),
        "\n".join(table.metric_table().to_markdown(escape_markdown) for table in evaluation_tables(rows)),
        f"![{escape_markdown(picture.title)}]({image_uri(picture)})" if picture else "",
        "\n".join(f"- {escape_markdown(note)}" for note in [*notes, *record.notes]),
        f"**Report:** {code_markdown(uri)}",
        f"To open it from anywhere: {code_markdown(f'rloop report {record.name} --store {record.store.uri}')}",
    ]
    return "\n\n".join(part for part in parts if part)


def _links(record: RunRecord, pages: Mapping[str, str]) -> str:
    """Return links to the figures of the last iterations; an earlier session's figure is linked by its key."""
    lines = []
    for iteration in record.iterations[-_MOST_LINKED:]:
        links = []
        for stage in (stage for stage in STAGES if record.manifest(iteration, stage)):
            name = f"{record.name}-{iteration:03d}-{stage}"
            links.append(f"[{stage}]({pages.get(name) or f'/artifacts/key/{artifact_key(name)}-figure'})")
        lines.append(f"- iteration {iteration}: {', '.join(links)}")
    return "\n".join(["Figures:", "", *lines]) if lines else ""
