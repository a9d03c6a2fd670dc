"""Draw the figure of each stage for the UI, from its artifact, with the report's functions."""

from collections.abc import Mapping
from pathlib import Path

from rloop_core.config import Config
from rloop_core.results.plotting import Picture
from rloop_core.results.report import figures
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows
from rloop_core.results.run_reader import RunRecord, ledgers, rl_steps, success_rate_lists
from rloop_core.stages.run_record import read_data_record
from rloop_core.store import BASE_ITERATION, Manifest, Store

_PATIENCE_SECONDS = 30.0


class Figures:
    """Draws the figures of a run and caches its evaluations. Use it from one thread.

    Args:
        config: The run's config.
        store: Its store.
        cache: Folder for files of remote stores.
        manifests: The artifacts so far, by (iteration, stage); may grow.
    """

    def __init__(
        self, config: Config, store: Store, cache: Path, manifests: Mapping[tuple[int, str], Manifest]
    ) -> None:
        self._config, self._cache, self._manifests = config, cache, manifests
        self._store = store.without_retries(_PATIENCE_SECONDS)
        self._rows: dict[int, list[EvaluationRow]] = {}

    def draw(self, manifest: Manifest, losses: list[float]) -> Picture | None:
        """Return the picture of a stage's artifact; None if there is nothing to draw.

        Args:
            manifest: The artifact's manifest.
            losses: The losses of all updates, from progress events; fine-tuning's artifact has only first and last.
        """
        stage, iteration = manifest.stage, manifest.iteration
        if stage == "rft":
            return figures.losses(losses, iteration)
        if stage == "evaluate":
            return figures.gains(self.evaluations(iteration))
        record = self._record({(iteration, stage): manifest})
        if stage == "explore":
            return figures.by_step("phase", rl_steps(record))
        if stage == "harvest":
            return figures.success_rates(success_rate_lists(record), self._config.filter.threshold)
        return figures.funnel(ledgers(record))

    def evaluations(self, last: int) -> list[EvaluationRow]:
        """Return every evaluated policy up to an iteration's, with its paired difference to the base."""
        evaluated = {
            iteration: manifest
            for (iteration, stage), manifest in list(self._manifests.items())
            if stage == "evaluate" and iteration <= last
        }
        for iteration in sorted(evaluated.keys() - self._rows.keys()):
            pair = {BASE_ITERATION, iteration} & evaluated.keys()
            record = self._record({(number, "evaluate"): evaluated[number] for number in sorted(pair)})
            self._rows[iteration] = [row for row in evaluation_rows(record) if row.iteration == iteration]
        rows = [row for iteration in sorted(evaluated) for row in self._rows[iteration]]
        sets = dict.fromkeys(row.problem_set for row in rows)
        return [row for label in sets for row in rows if row.problem_set == label]

    def _record(self, manifests: dict[tuple[int, str], Manifest]) -> RunRecord:
        """Return a record of these artifacts only: reading all manifests after every stage would be slow."""
        record = RunRecord(self._config.name, self._config, self._store, self._cache, manifests)
        record.data = read_data_record(self._store, self._config.name)
        return record
