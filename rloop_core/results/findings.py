"""Everything that a page says about a run, a run and its control, or a study, figures apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.config import Config
from rloop_core.errors import ConfigError
from rloop_core.evaluation.bootstrap import CONFIDENCE, RESAMPLES
from rloop_core.results.claims import Claim, claims
from rloop_core.results.comparability import method_notes, reasons_against, version_notes
from rloop_core.results.compute import compute_table, equality
from rloop_core.results.forgetting import Forgetting, SolvedRule, Transitions, forgetting, transitions
from rloop_core.results.frame import ENDS, Results, RunState
from rloop_core.results.run_reader import RunRecord, ledgers, read_run, success_rate_lists
from rloop_core.results.selection import Selected, read_selected
from rloop_core.results.similarity import Similarity, solutions_similarity
from rloop_core.results.study_config import StudyConfig, study_runs
from rloop_core.results.table import (
    ResultTable,
    Steps,
    by_step,
    effect_of_finetuning,
    result_sentence,
    result_table,
)
from rloop_core.results.tables import Table
from rloop_core.results.trajectories import Sample, sample_trajectories
from rloop_core.stages.inputs import stages_of
from rloop_core.store import Store

SCHEMA_VERSION = 2
Runs = Sequence[str | RunRecord]


@dataclass(frozen=True)
class Experts:
    """What the filter of one run left, by iteration."""

    run: str
    threshold: float
    ledgers: dict[int, dict[str, Any]]
    success_rates: dict[int, list[float]]
    """Success rates of the training problems over the RL phase."""


@dataclass(frozen=True)
class Report:
    """Runs and what they show."""

    title: str
    store: Store
    results: Results
    sentence: str
    """The result."""
    rule: str
    """What counts as solved, for forgetting."""
    table: ResultTable
    steps: Steps
    """Every policy on the way, by set and arm."""
    forgetting: list[Forgetting]
    claims: list[Claim]
    compute: Table
    equal: list[str]
    """Which costs are equal in both arms, and which are not."""
    study: StudyConfig | None = None
    moved: dict[str, dict[str, Transitions]] = field(default_factory=dict)
    """Learning and forgetting by set and arm, of a run against its control."""
    alike: dict[str, dict[str, Similarity]] = field(default_factory=dict)
    """Similarity of solutions, likewise."""
    experts: list[Experts] = field(default_factory=list)
    """What each run filtered, without a study."""
    samples: list[Sample] = field(default_factory=list)
    """Trajectories to show, likewise."""
    chosen: list[tuple[str, Selected]] = field(default_factory=list)
    """The checkpoint that each run's config chooses, by the arm's title, likewise."""

    @property
    def versions(self) -> dict[str, str]:
        """Packages that computed the runs; several versions of one are joined."""
        versions: dict[str, set[str]] = {}
        for run in self.results.runs.values():
            for name, numbers in run.versions.items():
                versions.setdefault(name, set()).update(numbers)
        return {name: ", ".join(sorted(numbers)) for name, numbers in sorted(versions.items())}

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON values."""
        results = self.results
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "result": self.sentence,
            "study": self.study.model_dump(mode="json") if self.study else None,
            "store": self.store.uri,
            "seeds": list(results.seeds),
            "intervals": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": results.resampling,
                          "over": "problems and seeds" if len(results.seeds) > 1 else "problems"},
            "solved": self.rule,
            "runs": [{**asdict(run), "finished": run.finished} for run in results.progress],
            "notes": results.notes,
            "not_comparable": results.not_comparable,
            "sets": {
                label: {"problems": len(results.problems[label]), "metrics": results.metrics[label]}
                for label in results.sets
            },
            "table": [asdict(row) for row in self.table.rows()],
            "claims": [{**asdict(claim), "outcome": claim.outcome} for claim in self.claims],
            "forgetting": [asdict(one) for one in self.forgetting],
            "by_step": [
                {"step": policy.step, "kind": policy.kind, **asdict(row)}
                for arms in self.steps.values()
                for rows in arms.values()
                for policy, row in rows.items()
            ],
            "compute": self.compute.to_dicts(),
            "equality": self.equal,
            "versions": self.versions,
            "rloop": __version__,
        }  # fmt: skip


def run_report(run: RunRecord) -> Report:
    """Return the report of one run, as far as it has come."""
    results = run_results(run)
    for sentence in effect_of_finetuning(results):
        run.note(sentence)
    return _report(run.name, results, run.store, SolvedRule())


def run_results(run: RunRecord, snapshots: bool = True) -> Results:
    """Return the results of one run; without `snapshots`, of what its iterations ended with."""
    key = (run.name, run.config.seed)
    return Results(
        runs={key: run},
        titles={run.name: run.name},
        seeds=(run.config.seed,),
        main=run.name,
        notes=run.notes,  # what is noted later is there too
        resampling=run.config.seed,
        under_way=True,
        snapshots=snapshots,
    )


def pair_report(
    runs: tuple[RunRecord, RunRecord],
    *,
    solved: str = "any",
    force: bool = False,
) -> Report:
    """Return the report of a run against its control; what is missing is left out and noted.

    Args:
        runs: The RLoop run; and its control, or another RLoop run whose method alone differs.
        solved: When a problem counts as solved: `any`, `majority` or `at-least-M` of its samples are correct.
        force: Compare runs that are not comparable, and say so on the page.

    Raises:
        ConfigError: The runs are not comparable, or there is no such rule.
    """
    rule, (ours, theirs) = SolvedRule(solved), runs
    order = [] if ours.config.arm == "rloop" else [f"{ours.name} is of arm {ours.config.arm}: name an RLoop run first"]
    against = [*order, *reasons_against(ours, theirs)]
    if against and not force:
        fix = "make the control with `rloop run --arm vanilla-rl` and the same config, or --force to compare anyhow"
        what = f"the runs are not comparable: {'; '.join(against)}"
        raise ConfigError(what, field=f"{ours.name}, {theirs.name}", fix=fix)
    names = {"rloop": "RLoop", "vanilla-rl": "RL"}
    same_kind = ours.config.arm == theirs.config.arm
    first, second = (run.name if same_kind else names[run.config.arm] for run in runs)
    second = f"{second} (again)" if first == second else second
    place = ours.config.seed
    results = Results(
        runs={(first, place): ours, (second, place): theirs},
        titles={second: second, first: first},
        seeds=(place,),
        main=first,
        reference=second,
        not_comparable=against,
        resampling=place,
        under_way=True,
    )
    report = _report(f"{ours.name} against {theirs.name}", results, ours.store, rule)
    for run in runs:
        _note_missing(run, results)
    # All that is read by now has left its notes.
    notes = [note if note.startswith(run.name) else f"{run.name}: {note}" for run in runs for note in run.notes]
    results.notes = list(dict.fromkeys([*notes, *results.notes, *method_notes(*runs), *version_notes(*runs)]))
    return report


def study_report(study: StudyConfig, store: Store, cache: Path, solved: str = "any") -> Report:
    """Return the report of a study's runs, as far as they have come.

    Args:
        study: The study.
        store: The object store with its runs.
        cache: Folder for copies of files of remote stores.
        solved: When a problem counts as solved, for forgetting.

    Raises:
        ConfigError: There is no such rule.
        StoreError: The store cannot be read.
    """
    rule, results = SolvedRule(solved), read_study(study, store, cache)
    return _report(study.name, results, store, rule, study=study)


def read_study(study: StudyConfig, store: Store, cache: Path) -> Results:
    """Read every run of a study that has begun; what is missing is left out.

    Raises:
        StoreError: The store cannot be read.
    """
    order = dict.fromkeys((study.reference, study.main, *study.arms))
    progress: list[RunState] = []
    runs: dict[tuple[str, int], RunRecord] = {}
    names: dict[str, list[str]] = {}
    for asked in study_runs(study, store.uri):
        name, stages = asked.config.name, len(stages_of(asked.config))
        if not store.exists(f"{name}/run.json"):
            progress.append(RunState(asked.arm, asked.seed, name, 0, stages))
            continue
        runs[asked.arm, asked.seed] = stored = read_run(store, name, cache)
        progress.append(RunState(asked.arm, asked.seed, name, len(stored.manifests), stages))
        for note in _other_config(asked.config, stored.config):
            names.setdefault(note, []).append(name)
    titles = {name: study.arms[name].title for name in order}
    results = Results(runs, titles, study.seeds, study.main, study.reference, progress)
    for run in runs.values():
        for note in (note for note in run.notes if note != run.incomplete):
            names.setdefault(note, []).append(run.name)
    reasons: dict[str, list[str]] = {}
    for (arm, seed), run in runs.items():
        reference = runs.get((study.reference, seed))
        if reference is not None and arm != study.reference:
            by_design = study.arms[arm].fields | study.arms[study.reference].fields  # what an arm's `set` names
            for reason in reasons_against(run, reference, by_design):
                reasons.setdefault(reason, []).append(run.name)
    results.notes[:0] = _by_note(names)
    results.not_comparable = _by_note(reasons)
    steps = {run.total_steps for run in runs.values()}
    if len(steps) > 1:
        results.notes.append(f"The arms have unequal numbers of RL steps: {', '.join(map(str, sorted(steps)))}.")
    return results


def _report(
    title: str,
    results: Results,
    store: Store,
    rule: SolvedRule,
    study: StudyConfig | None = None,
) -> Report:
    table, compute = result_table(results), compute_table(results)
    forgotten = forgetting(results, rule) if results.reference else []
    report = Report(
        title=title,
        store=store,
        results=results,
        sentence=result_sentence(results, table),
        rule=rule.name,
        table=table,
        steps=by_step(results),
        forgetting=forgotten,
        claims=claims(results, table, forgotten),
        compute=compute,
        equal=equality(results, compute),
        study=study,
    )
    for (arm, _), run in results.runs.items() if study is None else ():
        if chosen := read_selected(run):
            report.chosen.append((results.titles[arm], chosen))
        if run.config.arm == "rloop":
            rates = success_rate_lists(run)
            report.experts.append(Experts(run.name, run.config.filter.threshold, ledgers(run), rates))
        report.samples.extend(sample_trajectories(run))
    if study is None and results.reference is not None:
        (seed,) = results.seeds
        for label in results.sets:
            arms = [arm for arm in results.pair if len(results.policies(label, arm)) > 1]
            report.moved[label] = {arm: transitions(results, label, arm, seed, rule) for arm in arms}
            alike = {arm: solutions_similarity(results, label, arm, seed) for arm in arms}
            report.alike[label] = {arm: found for arm, found in alike.items() if found}
    return report


def _by_note(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each note once, with the names of its runs."""
    return [f"{', '.join(runs)}: {note}" for note, runs in names.items()]


def _other_config(asked: Config, stored: Config) -> list[str]:
    """Return a note if a run was made under another config than the study's."""
    ours, theirs = (config.model_dump(mode="json", exclude={"placement"}) for config in (asked, stored))
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if not differing:
        return []
    return [f"it was last started with another config than the study's ({', '.join(differing)} differ)."]


def _note_missing(run: RunRecord, results: Results) -> None:
    """Note what the run lacks for a comparison, and how to get it."""
    config, again = run.config, f"start {run.name} again"
    own = [(label, policy) for label, arm, seed, policy in results.files if results.runs[arm, seed] is run]
    ended = {label for label, policy in own if policy.kind in ENDS}
    missing = [source.label for source in config.evaluate.sets if source.label not in ended]
    if missing or not config.evaluate.sets:
        where = f"on {', '.join(missing)} yet" if missing else "(evaluate.sets)"
        run.note(f"{run.name} has no evaluated final policy {where}: {again}, and it goes on.")
    elif not any(policy.kind == "snapshot" for _, policy in own):
        anew = "" if config.explore.snapshot_every else " explore.snapshot_every=N (exploration is then computed anew),"
        run.note(f"{run.name} has no evaluated snapshots: set{anew} evaluate.snapshots=true and {again}.")
    last = max((policy.step for _, policy in own), default=0)
    if config.arm == "rloop" and 0 < last < run.total_steps:
        run.note(f"{run.name} has come to RL step {last} of {run.total_steps}: fewer than it is compared at.")
