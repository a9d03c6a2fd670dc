"""Collect trajectories of both final policies side by side: problems that one arm alone solves, and hard problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from itertools import product

from rloop_core.errors import RLoopError
from rloop_core.results.analysis.transitions import History, SolvedRule, histories
from rloop_core.results.report.trajectories import Sample, samples_of
from rloop_core.results.run_record import RunRecord, success_counts
from rloop_core.results.study.arms import Arm, Checkpoint, shared_sets
from rloop_core.trajectories import EXPERTS_FILE

PAGE_BYTES = 1_500_000
"""Most bytes of the page that trajectories take, escaped: hostile text can be five times as long as it looks."""
PROBLEMS_A_FATE = 6
COMPLETIONS_A_POLICY = 2
EXPERT_PROBLEMS = 6
_CHARACTERS = 2_000


@dataclass(frozen=True)
class Side:
    """One policy's answers to one problem.

    Attributes:
        title: The arm and the policy.
        correct, samples: Number of correct samples, and of all.
        told: History of the problem in this arm, in words.
        shown: A few of the samples.
    """

    title: str
    correct: int
    samples: int
    told: str
    shown: list[Sample]


@dataclass(frozen=True)
class Case:
    """One problem with the policies' answers.

    Attributes:
        place: Its problem set, or the training problems of an iteration.
        fate: In which way the arms differ, or "in the expert set".
        problem_id, prompt, gold: The problem; hostile text.
        sides: Both arms; of a hard problem the expert trajectories alone.
    """

    place: str
    fate: str
    problem_id: str
    prompt: str
    gold: str
    sides: list[Side]

    @property
    def escaped_bytes(self) -> int:
        """About how many bytes it takes on the page."""
        shown = [sample for side in self.sides for sample in side.shown]
        texts = [self.prompt, self.gold, *(text for one in shown for text in (one.completion, one.answer or ""))]
        return 1_000 + sum(len(escape(text).encode()) for text in texts)


@dataclass(frozen=True)
class Cases:
    """Cases that are shown; `found` counts all problems of each (place, fate), `left_out` cases without room."""

    cases: list[Case]
    found: dict[tuple[str, str], int]
    left_out: int


def collect_cases(ours: Arm, theirs: Arm, rule: SolvedRule) -> Cases:
    """Collect cases of every shared set, then of each RLoop arm's last expert set, as far as the page has room.

    Of each fate those problems come first whose correct samples differ most between the arms; of a final policy's
    samples the first correct one and the first other one are shown, or the first two where all are alike.
    """
    found: dict[tuple[str, str], int] = {}
    cases: list[Case] = []
    left_out = size = 0
    for case in (*_of_sets(ours, theirs, rule, found), *_hard(ours, found), *_hard(theirs, found)):
        size += case.escaped_bytes
        if size > PAGE_BYTES:
            left_out += 1
        else:
            cases.append(case)
    return Cases(cases, found, left_out)


def _of_sets(ours: Arm, theirs: Arm, rule: SolvedRule, found: dict[tuple[str, str], int]) -> Iterator[Case]:
    """Yield the problems that one final policy alone solves; sets without two final policies have none."""
    arms = (ours, theirs)
    for label in shared_sets(ours, theirs):
        ends = [end for arm in arms if (end := arm.final(label))]
        if len(ends) < 2:
            continue
        try:
            mine, other = (_histories(arm, label, end, rule) for arm, end in zip(arms, ends, strict=True))
        except RLoopError:  # noted where the matrices are missing
            continue
        told = (mine, other)

        def gap(problem: str, told: tuple[dict[str, History], ...] = told) -> int:
            return abs(told[0][problem].correct[-1] - told[1][problem].correct[-1])

        problems = sorted(mine.keys() & other.keys(), key=lambda problem: (-gap(problem), problem))
        for how, (winner, loser) in product(("lost", "never solved"), ((0, 1), (1, 0))):
            fate = f"{how} by {arms[loser].title}, solved by {arms[winner].title}"
            of_fate = [
                one
                for one in problems
                if told[winner][one].solved[-1]
                and not told[loser][one].solved[-1]
                and (told[loser][one].kind == "lost") == (how == "lost")
            ]
            if of_fate:
                found[label, fate] = len(of_fate)
            chosen = of_fate[:PROBLEMS_A_FATE]
            samples = [_samples(arm, end, chosen) for arm, end in zip(arms, ends, strict=True)]
            for problem in chosen:
                sides = [
                    _side(arm, end, by_problem[problem], shown.get(problem, []))
                    for arm, end, by_problem, shown in zip(arms, ends, told, samples, strict=True)
                ]
                if first := next((sample for side in sides for sample in side.shown), None):
                    yield Case(label, fate, problem, first.prompt, first.gold, sides)


def _histories(arm: Arm, label: str, end: Checkpoint, rule: SolvedRule) -> dict[str, History]:
    """Return the history of each problem on the way to the final policy.

    Raises:
        StageError: The final policy's problems are not those of the policies before it.
    """
    way = arm.checkpoints[label][: arm.checkpoints[label].index(end) + 1]
    told = histories([one.outcomes for one in way], [one.label for one in way], rule)
    return {history.problem_id: history for history in told}


def _samples(arm: Arm, end: Checkpoint, problems: Sequence[str]) -> dict[str, list[Sample]]:
    """Read a few samples of each problem; none, with a note, where they cannot be read."""
    nothing: dict[str, list[Sample]] = {}
    origin = f"{arm.title}, {end.label}"
    reader = partial(samples_of, end.files, problems, origin, COMPLETIONS_A_POLICY, _CHARACTERS)
    return arm.run.read(f"Samples of {origin}", reader, nothing) if problems else nothing


def _side(arm: Arm, end: Checkpoint, history: History, shown: list[Sample]) -> Side:
    samples = int(end.outcomes.n[end.outcomes.problem_ids.index(history.problem_id)])
    return Side(f"{arm.title}, {end.label}", history.correct[-1], samples, history.told, shown)


def _hard(arm: Arm, found: dict[tuple[str, str], int]) -> Iterator[Case]:
    """Yield the hardest problems of an arm's last expert set, with the trajectories that it was refined on."""
    run = arm.run
    filtered = [iteration for iteration in run.iterations if run.manifest(iteration, "filter")]
    if not filtered:
        return
    iteration = filtered[-1]
    rates = success_counts(run, iteration)
    nothing: dict[str, list[Sample]] = {}
    experts = run.read(f"expert set of iteration {iteration}", partial(_experts, run, iteration, rates), nothing)
    place, fate = f"training, iteration {iteration} of {run.name}", "in the expert set"
    if experts:
        found[place, fate] = int(run.manifests[iteration, "filter"].counts.get("problems", len(experts)))
    for problem, samples in experts.items():
        right, tries = rates[problem]
        told = f"success rate {right / tries:.1%} over all harvested rollouts"
        shown = [replace(sample, key=f"{iteration}/{sample.key}") for sample in samples]
        side = Side(f"{arm.title}, expert trajectories", right, tries, told, shown)
        yield Case(place, fate, problem, samples[0].prompt, samples[0].gold, [side])


def _experts(run: RunRecord, iteration: int, rates: dict[str, tuple[int, int]]) -> dict[str, list[Sample]]:
    """Read the first expert trajectories of the problems with the lowest success rates."""
    import pyarrow.parquet as pq

    files = run.files(iteration, "filter", EXPERTS_FILE)
    problems = {one for path in files for one in pq.read_table(path, columns=["problem_id"])["problem_id"].to_pylist()}
    hardest = sorted(problems & rates.keys(), key=lambda one: (rates[one][0] / rates[one][1], one))[:EXPERT_PROBLEMS]
    return samples_of(files, hardest, f"expert set of iteration {iteration}", COMPLETIONS_A_POLICY, _CHARACTERS)
