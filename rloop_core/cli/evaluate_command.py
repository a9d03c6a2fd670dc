"""`rloop evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rloop_core.cli.options import COUNT, FOLDER, json_option, k_list, share
from rloop_core.cli.output import print_json, progress_bar, show_metrics
from rloop_core.cli.policy_option import policy_option
from rloop_core.problems.registry import KNOWN_SETS
from rloop_core.problems.templates import TEMPLATES


@click.command("evaluate")
@click.option("--model", required=True, metavar="M", help="A folder, a hub id owner/name, or `bundled`.")
@click.option(
    "--problems", required=True, metavar="NAME_OR_FILE",
    help=f"{KNOWN_SETS}, reasoning_gym:<task>, or a JSONL/parquet file.",
)  # fmt: skip
@click.option("--samples", default=32, show_default=True, type=COUNT, help="Completions of each problem.")
@click.option(
    "--k", "ks", type=k_list, metavar="K,K,...",
    help="The k of pass@k.  [default: 1,8,16,32 up to --samples]",
)  # fmt: skip
@click.option(
    "--template", type=click.Choice(TEMPLATES),
    help="How a problem becomes a prompt.  [default: boxed; plain for a bundled policy]",
)  # fmt: skip
@click.option(
    "--temperature", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True),
    help="Sampling temperature.",
)  # fmt: skip
@click.option(
    "--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True),
    help="Probability mass of nucleus sampling.",
)  # fmt: skip
@click.option(
    "--max-tokens", type=COUNT,
    help="Tokens of a completion at most.  [default: 2048, or what the model's context leaves]",
)  # fmt: skip
@click.option("--limit", type=COUNT, help="Only the first N problems.")
@click.option("--batch", default=256, show_default=True, type=COUNT, help="Sequences generated together.")
@click.option(
    "--engine", type=click.Choice(["transformers", "vllm"]), default="transformers", show_default=True,
    help="Engine that samples; vllm must be installed (rloop[vllm]).",
)  # fmt: skip
@click.option(
    "--engines", type=COUNT,
    help="Replicas of vLLM that share the batches, each with a GPU of its own.  [default: one for each visible GPU; "
    "one on a CPU]",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
    help="Precision of the weights.",
)  # fmt: skip
@click.option("--out", type=FOLDER, help="Folder for samples and metrics.  [default: .rloop/evaluate/<hash>]")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the samples and of the bootstrap."
)
@click.option(
    "--shard", "share", type=share, default="1/1", metavar="I/N",
    help="Sample only the I-th of N shares of the batches, to divide the work among N machines.",
)  # fmt: skip
@policy_option
@json_option
def command(share: tuple[int, int], out: Path | None, as_json: bool, **fields: Any) -> None:
    """Generate completions with a model, judge them, and report avg@k, unbiased pass@k and majority@n with 95 %
    intervals.

    Each batch of samples is stored (parquet) as soon as it is done: after an interruption, the same command continues
    with the next batch.

    With --shard on each of them, several machines share the work; a batch has the same samples whichever machine
    computes it. The share that finds all batches in --out reports the metrics. Without a shared
    folder, copy the files of all `samples` folders into one folder and start the command without --shard: it samples
    only what is missing.

    \b
    Examples:
      rloop evaluate --model bundled --problems reasoning_gym:chain_sum --samples 8 --limit 20
      rloop evaluate --model Qwen/Qwen2.5-Math-7B --problems aime24 --samples 32 --k 1,8,16,32
      rloop evaluate --model ./theta --problems math500 --out /shared/math500 --shard 2/4
    """
    from rloop_core.policies import BUNDLED
    from rloop_core.stages.standalone import evaluate, evaluation_config

    fields["template"] = fields["template"] or ("plain" if fields["model"] == BUNDLED else "boxed")
    fields["ks"] = fields["ks"] or ()
    config = evaluation_config(**fields)
    title = f"{fields['model']} on {fields['problems']}"
    with progress_bar(title, "batches") as show:
        result = evaluate(config, out, show, share)
    if as_json:
        print_json(result)
    elif result["missing"]:
        done = f"{result['batches'] - result['missing']:,} of {result['batches']:,} batches"
        click.echo(f"{done} are in {result['out']}: no metrics before the other shares are done")
    else:
        show_metrics(title, result)
        click.echo(f"samples: {result['out']}")
