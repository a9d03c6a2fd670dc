"""An evaluation outside any run as a task: its metrics are shown in the UI."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from rloop_core.cli.scoring import default_ks
from rloop_core.cli.standalone import Request
from rloop_core.cli.standalone import evaluate as sample_and_score
from rloop_core.errors import ConfigError
from rloop_core.verifier.policies import Policies
from tasks.artifacts import publish_table
from tasks.results import metric_rows


@task(name="evaluate", task_run_name="evaluate-{problems}", cache_policy=NO_CACHE, persist_result=False)
def evaluate_model(
    model: str,
    problems: str,
    samples: int,
    ks: tuple[int, ...],
    template: str,
    temperature: float,
    top_p: float,
    max_tokens: int | None,
    limit: int | None,
    batch: int,
    dtype: str,
    seed: int,
    policies: Policies,
    out: str | None,
) -> str:
    """Sample what is not sampled yet, judge, summarise; the folder of samples and metrics."""
    ks = ks or default_ks(samples)
    if max(ks) > samples:
        raise ConfigError(f"pass@{max(ks)} needs as many samples", field="k", fix=f"raise samples to {max(ks)}")
    request = Request(
        model, problems, samples, template, temperature, top_p, max_tokens, limit, batch, dtype, seed, ks, policies
    )
    result = sample_and_score(request, Path(out) if out else None)
    publish_table(
        f"evaluate-{model}-{problems}",
        metric_rows(problems, result),
        f"{model} on {problems}: {result['samples']:,} samples",
    )
    return str(result["out"])
