"""`rloop score`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from rloop_core.cli.options import json_option, k_list, workers_option
from rloop_core.cli.output import print_json, show_metrics
from rloop_core.cli.policy_option import policy_option
from rloop_core.errors import ProblemsError, RLoopError
from rloop_core.files import file_identity
from rloop_core.verifier import Policies, Verdict, Verifier
from rloop_core.verifier.stream import judgeable, parse_object, read_batches

_COLUMNS = ["problem_id", "sample", "completion", "gold", "finished"]


@click.command("score")
@click.option(
    "--completions", "sources", required=True, multiple=True, metavar="F",
    help="JSON lines {problem_id, completion, answer} (- reads stdin), or stored samples: a parquet file, or a folder "
    "of them. May be repeated; all files are scored together.",
)  # fmt: skip
@click.option(
    "--k", "ks", type=k_list, metavar="K,K,...",
    help="The k of pass@k and majority@k.  [default: 1, 8, 16, 32 up to the number of samples]",
)  # fmt: skip
@click.option("--skip-malformed", is_flag=True, help="Skip and count bad lines instead of refusing the file.")
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@workers_option
@policy_option
@json_option
def command(
    sources: tuple[str, ...],
    ks: tuple[int, ...] | None,
    skip_malformed: bool,
    seed: int,
    workers: int,
    policies: Policies,
    as_json: bool,
) -> None:
    """Score completions that you already have: avg@k, unbiased pass@k and majority@k with 95 % bootstrap intervals.

    Lines with the same problem_id are samples of one problem, whichever file they are in, and have one gold answer. A
    line may carry `finished: false` if its completion was cut off. Stored samples of `rloop evaluate` are judged again,
    so that you can try other policies of the verifier on them.

    \b
    Examples:
      rloop score --completions samples.jsonl --k 1,8,32
      rloop score --completions shard-1.jsonl --completions shard-2.jsonl
      rloop score --completions .rloop/evaluate/1f0c/samples --policy boxes=single
    """
    from rloop_core.evaluation.majority import wrong_votes
    from rloop_core.evaluation.outcomes import Outcomes, summarise
    from rloop_core.stages.standalone import default_ks

    rows, skipped = _read_completions(sources, skip_malformed)
    with Verifier(workers=workers, policies=policies) as verifier:
        _check_golds(rows, verifier)
        judged = verifier.judge_many([(row.completion, row.answer, row.finished) for row in rows])
    pairs = [(row.problem_id, one) for row, one in zip(rows, judged, strict=True)]
    samples = Counter(problem for problem, _ in pairs)
    correct = Counter(problem for problem, one in pairs if one.verdict is Verdict.correct)
    truncated = Counter(row.problem_id for row in rows if not row.finished)
    n, c, cut = ([counts[problem] for problem in samples] for counts in (samples, correct, truncated))
    votes = wrong_votes((problem, one.answer, str(one.verdict), 1) for problem, one in pairs)
    outcomes = Outcomes.from_counts(list(samples), n, c, truncated=cut, wrong=votes)
    chosen = ks or default_ks(int(outcomes.n.min()))
    summary = summarise(outcomes, chosen, seed=seed, majority=chosen)
    summary.pop("mean_length")  # the lines hold text, not tokens
    source = ", ".join(sources)
    verdicts = Counter(str(one.verdict) for one in judged)
    result = {"source": source, **summary, "verdicts": verdicts, "malformed_skipped": skipped, "seed": seed}
    result["policies"] = policies.model_dump(mode="json")
    print_json(result) if as_json else show_metrics(source, result)


class _Row(NamedTuple):
    """One completion to score, and its file and line."""

    problem_id: str
    completion: str
    answer: Any
    finished: bool
    place: str


def _check_golds(rows: Sequence[_Row], verifier: Verifier) -> None:
    """Check that the rows of each problem have one gold, in whatever notation.

    Raises:
        ProblemsError: Two problems have one id; it names the first row that differs from an earlier one.
    """
    firsts: dict[str, _Row] = {}
    others: dict[tuple[str, str], tuple[_Row, _Row]] = {}
    for row in rows:
        first = firsts.setdefault(row.problem_id, row)
        others.setdefault((row.problem_id, json.dumps(row.answer)), (first, row))
    pairs = [
        (first, row, text, gold)
        for first, row in others.values()
        for texts, gold in ((first.answer, row.answer), (row.answer, first.answer))
        for text in (texts if isinstance(texts, list) else [texts])
        if first is not row and text is not None
    ]
    verdicts = verifier.compare_many([(str(text).rsplit("####", 1)[-1], gold) for *_, text, gold in pairs])
    for (first, row, *_), verdict in zip(pairs, verdicts, strict=True):
        if verdict is not Verdict.correct:
            golds = [f"{json.dumps(each.answer, ensure_ascii=False):.40}" for each in (row, first)]
            what = f"has the gold {golds[0]} for problem {row.problem_id}, and {first.place} has {golds[1]}"
            fix = "give each problem an id of its own, or score the files one by one"
            raise ProblemsError(what, field=row.place, fix=fix)


def _read_completions(sources: Sequence[str], skip_malformed: bool) -> tuple[list[_Row], int]:
    """Return the rows of all sources, and the number of skipped lines.

    Args:
        sources: JSON-lines files (`-`: stdin), parquet files of trajectories, or folders of such parquet files.
        skip_malformed: Skip and count bad lines. Parquet files have none: one that is off the schema is an error.

    Raises:
        ProblemsError: No such file, one given twice, a malformed line (named by its number) that may not be skipped,
            a stored sample that two files hold, or no rows.
    """
    files = [path for source in sources for path in _files(source)]
    given: dict[object, str] = {}
    for path in files:
        identity = file_identity(Path("/dev/stdin" if path == "-" else path))
        if identity in given:
            also = "" if given[identity] == path else f", also as {given[identity]}"
            raise ProblemsError(f"is given twice{also}", field=path, fix="its samples would count twice: name it once")
        given[identity] = path
    rows: list[_Row] = []
    skipped = 0
    seen: dict[tuple[str, int], str] = {}
    for path in files:
        if path.endswith(".parquet"):
            rows += _stored(path, seen)
            continue
        read = list(_lines(path, skip_malformed))
        skipped += read.count(None)
        rows += [row for row in read if row is not None]
    if not rows:
        fix = "give at least one line"
        raise ProblemsError(f"holds no completions ({skipped} lines skipped)", field=", ".join(sources), fix=fix)
    return rows, skipped


def _files(source: str) -> list[str]:
    """Return the source itself, or the parquet files below a folder, sorted."""
    path = Path(source).expanduser()
    if not path.is_dir():
        return [str(path)]
    files = sorted(str(file) for file in path.rglob("*.parquet"))
    if not files:
        raise ProblemsError("holds no parquet files", field=source, fix="name a folder of `rloop evaluate`, or a file")
    return files


def _lines(source: str, skip_malformed: bool) -> Iterator[_Row | None]:
    """Yield the rows of a JSON-lines file, and None for a skipped line."""
    try:
        with click.open_file(source, "rb") as stream:
            for number, line in chain.from_iterable(read_batches(cast("BufferedIOBase", stream))):
                try:
                    yield _row(parse_object(number, line), f"{source} line {number}")
                except ValueError as error:
                    if not skip_malformed:
                        fix = "correct it, or pass --skip-malformed to skip and count such lines"
                        raise ProblemsError(f"line {number}: {error}", field=source, fix=fix) from None
                    yield None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProblemsError(f"cannot be read: {reason}", field=source, fix="name a JSON-lines file") from error


def _row(content: dict[str, Any], place: str) -> _Row:
    problem = content.get("problem_id")
    if not isinstance(problem, str | int | float) or isinstance(problem, bool):
        raise ValueError(f"field problem_id {'is missing' if problem is None else 'must be text or a number'}")
    return _Row(str(problem), *judgeable(content), place)


def _stored(path: str, seen: dict[tuple[str, int], str]) -> list[_Row]:
    """Return the rows of a trajectory file; `seen` maps (problem, sample) to the file that holds it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rloop_core.trajectories.schema import check_schema

    try:
        check_schema(path)
        records = pq.read_table(path, columns=_COLUMNS).to_pylist()
    except (OSError, pa.ArrowException, RLoopError) as error:
        fix = "name samples of `rloop evaluate`, or JSON lines"
        raise ProblemsError(f"cannot be read: {str(error)[:200]}", field=path, fix=fix) from error
    rows: list[_Row] = []
    for row in records:
        key = (row["problem_id"], row["sample"])
        if key in seen:
            what = f"holds sample {key[1]} of problem {key[0]}, as {seen[key]} does"
            fix = "name the samples of one policy, each shard once"
            raise ProblemsError(what, field=path, fix=fix)
        seen[key] = path
        place = f"{path} line {len(rows) + 1}"
        rows.append(_Row(row["problem_id"], row["completion"], row["gold"], row["finished"], place))
    return rows
