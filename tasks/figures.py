"""The figure that each stage leaves in the UI: drawn from its artifact by the report's own hands."""

from pathlib import Path

from rloop_core.results.plotting import Picture
from rloop_core.results.report import figures
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows
from rloop_core.results.run_record import RunRecord, ledgers, rl_steps, success_rate_lists
from rloop_core.stages.data_record import read_data_record
from rloop_core.store import BASE_ITERATION, Manifest
from tasks.session import RunSession

_PATIENCE_SECONDS = 30.0


class Figures:
    """Draws, and remembers the evaluations so far; used by one thread.

    Args:
        run: The open run.
    """

    def __init__(self, run: RunSession) -> None:
        self._run = run
        self._rows: dict[int, list[EvaluationRow]] = {}

    def of(self, manifest: Manifest, losses: list[float]) -> Picture | None:
        """The picture of a stage's artifact; None where there is nothing to draw.

        Args:
            manifest: Of the artifact.
            losses: Of each update, as the stage told them; fine-tuning keeps but the first and the last.
        """
        stage, iteration = manifest.stage, manifest.iteration
        if stage == "rft":
            return figures.losses(losses, iteration)
        record = self._record({(iteration, stage): manifest})
        if stage == "explore":
            return figures.phase(rl_steps(record))
        if stage == "harvest":
            return figures.success_rates(success_rate_lists(record), self._run.config.filter.threshold)
        if stage == "filter":
            return figures.funnel(ledgers(record))
        return figures.gains(self.evaluations(iteration))

    def evaluations(self, last: int) -> list[EvaluationRow]:
        """Every evaluated policy up to one iteration's, with its paired difference to the base."""
        seen = {at: one for (at, stage), one in list(self._run.manifests.items()) if stage == "evaluate" and at <= last}
        for iteration in sorted(seen.keys() - self._rows.keys()):
            ends = {BASE_ITERATION, iteration} & seen.keys()
            record = self._record({(at, "evaluate"): seen[at] for at in sorted(ends)})
            self._rows[iteration] = [row for row in evaluation_rows(record) if row.iteration == iteration]
        rows = [row for iteration in sorted(seen) for row in self._rows[iteration]]
        sets = dict.fromkeys(row.problem_set for row in rows)
        return [row for label in sets for row in rows if row.problem_set == label]

    def _record(self, manifests: dict[tuple[int, str], Manifest]) -> RunRecord:
        """The run as far as a figure needs it: its other manifests are not read again after every stage."""
        config = self._run.config
        store = self._run.runner.store.hasty(_PATIENCE_SECONDS)
        record = RunRecord(config.name, config, store, self._cache(), manifests)
        record.data = read_data_record(store, config.name)
        return record

    def _cache(self) -> Path:
        return self._run.runner.scratch() / "cache"
