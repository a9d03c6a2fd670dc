"""Trajectories of both final policies side by side: problems whose fate differs between the arms, and hard problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape

from rloop_core.errors import RLoopError
from rloop_core.results.analysis.transitions import History, SolvedRule, histories
from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.report.trajectories import Sample, samples_of
from rloop_core.results.run_record import RunRecord, success_counts
from rloop_core.trajectories.layout import EXPERTS_FILE

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
        title: The arm, and which of its policies.
        correct, samples: How many of its samples are correct, of how many.
        told: What became of the problem in this arm, in words.
        shown: A few of the samples.
    """

    title: str
    correct: int
    samples: int
    told: str
    shown: list[Sample]


@dataclass(frozen=True)
class Case:
    """One problem with what the policies made of it.

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
        """About what it takes on the page."""
        shown = [one for side in self.sides for one in side.shown]
        texts = [self.prompt, self.gold, *(text for one in shown for text in (one.completion, one.answer or ""))]
        return 1_000 + sum(len(escape(text).encode()) for text in texts)


@dataclass(frozen=True)
class Cases:
    """What is shown, and of how many: `found` counts the problems of every (place, fate)."""

    cases: list[Case]
    found: dict[tuple[str, str], int]
    left_out: int

    @property
    def places(self) -> list[str]:
        """In the order of the cases."""
        return list(dict.fromkeys(one.place for one in self.cases))

    @property
    def fates(self) -> list[str]:
        """In the order of the cases."""
        return list(dict.fromkeys(one.fate for one in self.cases))


def collect_cases(ours: Arm, theirs: Arm, rule: SolvedRule) -> Cases:
    """Cases of every shared set, then of each RLoop arm's last expert set, as far as the page has room.

    Of each fate those problems come first whose correct samples differ most between the arms; of a final policy's
    samples the first correct one and the first other one are shown, or the first two where all are alike.
    """
    found: dict[tuple[str, str], int] = {}
    cases: list[Case] = []
    left_out = room = 0
    for one in (*_of_sets(ours, theirs, rule, found), *(case for arm in (ours, theirs) for case in _hard(arm, found))):
        room += one.escaped_bytes
        if room > PAGE_BYTES:
            left_out += 1
        else:
            cases.append(one)
    return Cases(cases, found, left_out)


def _of_sets(ours: Arm, theirs: Arm, rule: SolvedRule, found: dict[tuple[str, str], int]) -> Iterator[Case]:
    fates = _fates(ours.title, theirs.title)
    for label in shared_sets(ours, theirs):
        answers = [one for arm in (ours, theirs) if (one := _answers(arm, label, rule))]
        if len(answers) < 2:
            continue
        told = [one.told for one in answers]
        by_fate: dict[str, list[str]] = {}
        for problem in sorted(told[0].keys() & told[1].keys()):
            place = _fate(told[0][problem], told[1][problem])
            if place is not None:
                by_fate.setdefault(fates[place], []).append(problem)
        for fate in fates:
            problems = sorted(by_fate.get(fate, ()), key=lambda one: -_gap(told[0][one], told[1][one]))
            if problems:
                found[label, fate] = len(problems)
                yield from _cases(label, fate, problems[:PROBLEMS_A_FATE], answers)


def _fates(ours: str, theirs: str) -> list[str]:
    return [f"lost by {theirs}, solved by {ours}", f"lost by {ours}, solved by {theirs}",
            f"never solved by {theirs}, solved by {ours}", f"never solved by {ours}, solved by {theirs}"]  # fmt: skip


def _fate(ours: History, theirs: History) -> int | None:
    """In which way the arms' final policies differ on a problem, a place in `_fates`; None where they do not."""
    if ours.solved[-1] == theirs.solved[-1]:
        return None
    winner, loser = (0, theirs) if ours.solved[-1] else (1, ours)
    return winner + (0 if loser.kind == "lost" else 2)


def _gap(one: History, other: History) -> int:
    return abs(one.correct[-1] - other.correct[-1])


@dataclass(frozen=True)
class _Answers:
    """An arm's final policy on a set, and what became of each problem on the way to it."""

    arm: Arm
    end: Checkpoint
    told: dict[str, History]

    def read(self, problems: Sequence[str]) -> dict[str, list[Sample]]:
        """A few samples of each problem; none, with a note, where they cannot be read."""
        nothing: dict[str, list[Sample]] = {}
        origin = f"{self.arm.title}, {self.end.label}"
        reader = partial(samples_of, self.end.files, problems, origin, COMPLETIONS_A_POLICY, _CHARACTERS)
        return self.arm.run.read(f"Samples of {origin}", reader, nothing)

    def side(self, problem: str, shown: list[Sample]) -> Side:
        """The policy's side of a case."""
        outcomes = self.end.outcomes
        samples = int(outcomes.n[outcomes.problem_ids.index(problem)])
        told = self.told[problem]
        return Side(f"{self.arm.title}, {self.end.label}", told.correct[-1], samples, told.told, shown)


def _answers(arm: Arm, label: str, rule: SolvedRule) -> _Answers | None:
    """None where there is no final policy yet, or its problems are not those of the policies before it."""
    end = arm.final(label)
    if end is None:
        return None
    way = arm.checkpoints[label][: arm.checkpoints[label].index(end) + 1]
    try:
        told = histories([one.outcomes for one in way], [one.label for one in way], rule)
    except RLoopError:  # said where the matrices are missing
        return None
    return _Answers(arm, end, {one.problem_id: one for one in told})


def _cases(place: str, fate: str, problems: Sequence[str], answers: Sequence[_Answers]) -> Iterator[Case]:
    read = [one.read(problems) for one in answers]
    for problem in problems:
        shown = [found.get(problem, []) for found in read]
        first = next((one for side in shown for one in side), None)
        if first is not None:
            sides = [one.side(problem, own) for one, own in zip(answers, shown, strict=True)]
            yield Case(place, fate, problem, first.prompt, first.gold, sides)


def _hard(arm: Arm, found: dict[tuple[str, str], int]) -> Iterator[Case]:
    """The hardest problems of an arm's last expert set, with the trajectories that it was refined on."""
    run = arm.run
    filtered = [iteration for iteration in run.iterations if run.manifest(iteration, "filter")]
    if not filtered:
        return
    iteration = filtered[-1]
    rates = success_counts(run, iteration)
    nothing: dict[str, list[Sample]] = {}
    shown = run.read(f"expert set of iteration {iteration}", partial(_experts, run, iteration, rates), nothing)
    place, fate = f"training, iteration {iteration} of {run.name}", "in the expert set"
    if shown:
        found[place, fate] = int(run.manifests[iteration, "filter"].counts.get("problems", len(shown)))
    for problem, samples in shown.items():
        right, tries = rates[problem]
        told = f"success rate {right / tries:.1%} over all harvested rollouts"
        keyed = [replace(one, key=f"{iteration}/{one.key}") for one in samples]
        title = f"{arm.title}, expert trajectories"
        yield Case(place, fate, problem, samples[0].prompt, samples[0].gold, [Side(title, right, tries, told, keyed)])


def _experts(run: RunRecord, iteration: int, rates: dict[str, tuple[int, int]]) -> dict[str, list[Sample]]:
    """The first expert trajectories of the problems with the lowest success rates."""
    import pyarrow.parquet as pq

    files = run.files(iteration, "filter", EXPERTS_FILE)
    problems = {one for path in files for one in pq.read_table(path, columns=["problem_id"])["problem_id"].to_pylist()}
    hardest = sorted(problems & rates.keys(), key=lambda one: (rates[one][0] / rates[one][1], one))[:EXPERT_PROBLEMS]
    return samples_of(files, hardest, f"expert set of iteration {iteration}", COMPLETIONS_A_POLICY, _CHARACTERS)
