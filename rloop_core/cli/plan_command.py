"""`rloop plan`."""

from __future__ import annotations

from typing import Any

import click

from rloop_core.cli.options import COUNT, json_option, set_option
from rloop_core.cli.output import console, plain_table, print_json

_GPUS = ("h100", "h200", "a100", "l40s", "rtx4090", "cpu")


@click.command("plan")
@click.option("--config", "config_file", metavar="F", help="Config file (YAML).")
@set_option
@click.option(
    "--gpu", type=click.Choice(_GPUS), help="Device to plan for.  [default: cpu if the config says so, else h100]"
)
@click.option("--gpus", type=COUNT, metavar="N", help="Number of devices.  [default: placement.processes]")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the config file, and nothing else.")
@json_option
def command(
    config_file: str | None, overrides: tuple[str, ...], gpu: str | None, gpus: int | None, schema: bool, as_json: bool
) -> None:
    """Estimate a run without starting it: rollouts, tokens, storage, memory, a range of hours, and what does not fit.

    Touches nothing: no store, no download, no accelerator. The estimates are printed with their assumptions.

    \b
    Examples:
      rloop plan --config deployments/configs/qwen2.5-math-1.5b.yaml --gpu a100
      rloop plan --schema > rloop.schema.json
    """
    from rloop_core.config import Config, load_config

    if schema:
        print_json(Config.model_json_schema())
        return
    if config_file is None:
        raise click.UsageError("Missing option '--config'.")
    from rloop_core.plan.estimate import make_plan

    plan = make_plan(load_config(config_file, overrides), gpu, gpus)
    if as_json:
        print_json(plan)
    else:
        _show(plan)


def _show(plan: dict[str, Any]) -> None:
    """Print the plan, a section for each subject."""
    from rich.text import Text

    from rloop_core.results.progress import duration
    from rloop_core.results.tables import size

    out = console()
    device, hours, parameters = plan["device"], plan["hours"], plan["policy"]["parameters"]
    policy = f"{plan['policy']['path']} ({f'{_number(parameters)} parameters' if parameters else 'size unknown'})"
    several = device["count"] > 1
    count, sharding = (f"{device['count']} x ", f", {plan['sharding']['name']}") if several else ("", "")
    out.print(Text(f"{plan['run']}: {plan['iterations']} iterations from {policy}", "bold"))
    out.print(Text(f"on {count}{device['name']}, {device['memory_gib']:,.0f} GiB{sharding}\n"))
    out.print(_grid(_counts(plan["counts"], plan["tokens"])))
    out.print(Text("\nstorage", "bold"))
    out.print(_grid([(name, size(value)) for name, value in plan["storage_bytes"].items()]))
    if plan["memory"]:
        out.print(Text(f"\nmemory of each device, in passes of {plan['micro_batch_tokens']:,} tokens", "bold"))
        out.print(_grid([(stage["stage"], _memory(stage)) for stage in plan["memory"]]))
        for fix in dict.fromkeys(line.partition(": ")[2] for line in plan["does_not_fit"]):
            out.print(Text(f"  to make it fit: {fix}", "yellow"))
    if hours["total"]:
        out.print(Text("\ntime of an iteration", "bold"))
        rows = [*hours["per_iteration"].items(), ("the whole run", hours["total"])]
        out.print(
            _grid([(name, " to ".join(dict.fromkeys(duration(3600 * end) for end in ends))) for name, ends in rows])
        )
    out.print(Text("\nassumptions", "bold"))
    for line in plan["assumptions"]:
        out.print(Text(f"  {line}"))


def _memory(stage: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:,.1f}" for name, value in stage["parts_gib"].items() if value >= 0.05)
    verdict = f"{'fits' if stage['fits'] else 'DOES NOT FIT'}{f'  ({parts})' if parts else ''}"
    return f"{stage['needed_gib']:,.1f} of {stage['available_gib']:,.0f} GiB: {verdict}"


def _counts(counts: dict[str, Any], tokens: dict[str, float]) -> list[tuple[str, str]]:
    """Return the rows on what is sampled and trained on."""
    problems, experts = counts["problems"], counts["expert_trajectories_at_most"]
    each = counts["rollouts_per_problem_and_iteration"]
    total, at_most = counts["rollouts"], counts["rollouts_at_most"]
    rollouts = (
        f"{counts['rollouts_per_rl_step']:,} an RL step x {counts['rl_steps_per_iteration']:,} steps = "
        f"{counts['rollouts_per_iteration']:,} an iteration, {total:,} in all"
    )
    samples = counts["evaluation_samples_per_policy"]
    evaluated = ", ".join(f"{label} {f'{n:,}' if n else 'unknown'}" for label, n in samples.items())
    return [
        ("problems", f"{problems:,}, {each:g} rollouts of each an iteration" if problems else "unknown"),
        ("rollouts", f"{rollouts} (at most {at_most:,} with dynamic sampling)" if at_most > total else rollouts),
        ("updates", f"{counts['updates_per_iteration']:,} an iteration"),
        ("expert set", f"at most {experts:,} trajectories" if experts else "unknown"),
        ("evaluation", f"{evaluated} samples, of {counts['policies_evaluated']} policies" if samples else "none"),
        (
            "tokens",
            f"{_number(tokens['explored'])} explored, {_number(tokens['evaluated'])} evaluated; at most "
            f"{_number(tokens['explored_at_most'])} and {_number(tokens['evaluated_at_most'])}",
        ),
    ]


def _grid(rows: list[tuple[str, str]]) -> Any:
    from rich.text import Text

    grid = plain_table("", "")
    for name, value in rows:
        grid.add_row(Text(f"  {name}", "dim"), Text(value))
    return grid


def _number(value: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"
