"""`rloop score`."""

from __future__ import annotations

from collections import Counter

import click

from rloop_core.cli.options import json_option, k_list, workers_option
from rloop_core.cli.output import print_json, show_metrics
from rloop_core.cli.policy_option import policy_option
from rloop_core.verifier.policies import Policies


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

    Lines with the same problem_id are samples of one problem, whichever file they are in. A line may carry
    `finished: false` if its completion was cut off. Stored samples of `rloop evaluate` are judged again, so that you
    can try other policies of the verifier on them.

    \b
    Examples:
      rloop score --completions samples.jsonl --k 1,8,32
      rloop score --completions shard-1.jsonl --completions shard-2.jsonl
      rloop score --completions .rloop/evaluate/1f0c/samples --policy boxes=single
    """
    from rloop_core.cli.completions import read_completions
    from rloop_core.evaluation.majority import wrong_votes
    from rloop_core.evaluation.outcomes import Outcomes, summarise
    from rloop_core.stages.standalone import default_ks
    from rloop_core.verifier import Verdict, Verifier

    rows, skipped = read_completions(sources, skip_malformed)
    with Verifier(workers=workers, policies=policies) as verifier:
        judgements = verifier.judge_many([(row.completion, row.answer, row.finished) for row in rows])
    pairs = list(zip(rows, judgements, strict=True))
    samples = Counter(row.problem_id for row in rows)
    correct = Counter(row.problem_id for row, judgement in pairs if judgement.verdict is Verdict.correct)
    truncated = Counter(row.problem_id for row in rows if not row.finished)
    n, c, cut = ([counts[problem] for problem in samples] for counts in (samples, correct, truncated))
    votes = wrong_votes((row.problem_id, judgement.answer, str(judgement.verdict), 1) for row, judgement in pairs)
    outcomes = Outcomes.from_counts(list(samples), n, c, truncated=cut, wrong=votes)
    chosen = ks or default_ks(int(outcomes.n.min()))
    summary = summarise(outcomes, chosen, seed=seed, majority=chosen)
    summary.pop("mean_length")  # the lines hold text, not tokens
    source = ", ".join(sources)
    verdicts = Counter(str(judgement.verdict) for judgement in judgements)
    result = {"source": source, **summary, "verdicts": verdicts, "malformed_skipped": skipped, "seed": seed}
    result["policies"] = policies.model_dump(mode="json")
    if as_json:
        print_json(result)
    else:
        show_metrics(source, result)
