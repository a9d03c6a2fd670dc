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
from rloop_core.results.run_reader import RunRecord, success_counts
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


@dataclass(frozen=True)
class _Final:
    """An arm's final policy on one problem set; `histories` are by problem id, on the way to this policy."""

    arm: Arm
    checkpoint: Checkpoint
    histories: dict[str, History]

    def side(self, problem: str, shown: list[Sample]) -> Side:
        history, outcomes = self.histories[problem], self.checkpoint.outcomes
        samples = int(outcomes.n[outcomes.problem_ids.index(problem)])
        return Side(f"{self.arm.title}, {self.checkpoint.label}", history.correct[-1], samples, history.told, shown)

    def samples(self, problems: Sequence[str]) -> dict[str, list[Sample]]:
        """Read a few samples of each problem; none, with a note, where they cannot be read."""
        nothing: dict[str, list[Sample]] = {}
        origin = f"{self.arm.title}, {self.checkpoint.label}"
        reader = partial(samples_of, self.checkpoint.files, problems, origin, COMPLETIONS_A_POLICY, _CHARACTERS)
        return self.arm.run.read(f"Samples of {origin}", reader, nothing) if problems else nothing


def _of_sets(ours: Arm, theirs: Arm, rule: SolvedRule, found: dict[tuple[str, str], int]) -> Iterator[Case]:
    """Yield the problems that one final policy alone solves; sets without two final policies have none."""
    for label in shared_sets(ours, theirs):
        try:
            first, second = _final(ours, label, rule), _final(theirs, label, rule)
        except RLoopError:  # noted where the matrices are missing
            continue
        if not first or not second:
            continue
        for lost, (winner, loser) in product((True, False), ((first, second), (second, first))):
            problems = _solved_by_one(winner, loser, lost=lost)
            fate = f"{'lost' if lost else 'never solved'} by {loser.arm.title}, solved by {winner.arm.title}"
            if problems:
                found[label, fate] = len(problems)
            chosen = problems[:PROBLEMS_A_FATE]
            samples = [(final, final.samples(chosen)) for final in (first, second)]
            for problem in chosen:
                sides = [final.side(problem, shown.get(problem, [])) for final, shown in samples]
                if one := next((sample for side in sides for sample in side.shown), None):
                    yield Case(label, fate, problem, one.prompt, one.gold, sides)


def _final(arm: Arm, label: str, rule: SolvedRule) -> _Final | None:
    """Return the arm's final policy on a set; None if it was not evaluated.

    Raises:
        StageError: The final policy's problems are not those of the policies before it.
    """
    end = arm.final(label)
    if end is None:
        return None
    way = arm.checkpoints[label][: arm.checkpoints[label].index(end) + 1]
    by_problem = histories([one.outcomes for one in way], [one.label for one in way], rule)
    return _Final(arm, end, {history.problem_id: history for history in by_problem})


def _solved_by_one(winner: _Final, loser: _Final, *, lost: bool) -> list[str]:
    """Return the problems that `winner` alone solves, those first whose correct samples differ most.

    With `lost` those that the other arm had solved on its way, without it those that it never solved.
    """
    differences = {
        problem: abs(winner.histories[problem].correct[-1] - loser.histories[problem].correct[-1])
        for problem in winner.histories.keys() & loser.histories.keys()
        if winner.histories[problem].solved[-1]
        and not loser.histories[problem].solved[-1]
        and (loser.histories[problem].kind == "lost") == lost
    }
    return sorted(differences, key=lambda problem: (-differences[problem], problem))


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
