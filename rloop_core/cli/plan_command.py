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
@click.option(
    "--gpus", type=COUNT, metavar="N",
    help="Number of devices that share the work.  [default: the fewest that hold the training states]",
)  # fmt: skip
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the config file, and nothing else.")
@json_option
def command(
    config_file: str | None, overrides: tuple[str, ...], gpu: str | None, gpus: int | None, schema: bool, as_json: bool
) -> None:
    """Estimate a run without starting it: rollouts, tokens, storage, memory and hours, and what does not fit.

    Touches nothing: no store, no download, no accelerator. The estimates are printed with their assumptions.

    \b
    Examples:
      rloop plan --config deployments/configs/qwen2.5-math-7b.yaml --gpu h200 --gpus 8
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
    count = f"{device['count']} x " if several else ""
    sharding = f", {plan['sharding']['name']}" if several and plan["sharding"] else ""
    out.print(Text(f"{plan['run']}: {plan['iterations']} iterations from {policy}", "bold"))
    out.print(Text(f"on {count}{device['name']}, {device['memory_gib']:,.0f} GiB{sharding}\n"))
    out.print(_grid(_counts(plan["counts"], plan["tokens"])))
    out.print(Text("\nstorage", "bold"))
    out.print(_grid([(name, size(value)) for name, value in plan["storage_bytes"].items()]))
    if plan["memory"]:
        out.print(Text("\nmemory of each device", "bold"))
        out.print(_grid([(stage["stage"], _memory(stage)) for stage in plan["memory"]]))
        for line in plan["does_not_fit"]:
            out.print(Text(f"  to make it fit: {line}", "yellow"))
    if hours["total"] is not None:
        out.print(Text("\ntime of an iteration", "bold"))
        out.print(_grid([(name, duration(3600 * value)) for name, value in hours["per_iteration"].items()]))
        fits = ", once it fits" if plan["does_not_fit"] else ""
        out.print(Text(f"  the whole run: {duration(3600 * hours['total'])} of {device['count']} device(s){fits}"))
        if slow := hours["total_with_generate"]:
            out.print(Text(f"  with transformers' generate in place of vLLM: {duration(3600 * slow)}"))
    if plan["machines"]:
        _show_machines(out, plan["machines"])
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


def _show_machines(out: Any, machines: list[dict[str, Any]]) -> None:
    """Print how the run would do on other machines: memory by stage, hours, settings, or why it does not fit."""
    from rich.text import Text

    from rloop_core.results.progress import duration

    out.print(Text("\nthe same run on", "bold"))
    table = plain_table("", "explore / rft / evaluate, GiB", "the run", "training states")
    settings = []
    for row in machines:
        if row["settings"] is None:
            table.add_row(f"  {row['machine']}", "does not fit", "", Text(row["why"], "yellow"))
            continue
        memory = " / ".join(f"{value:,.0f}" for value in row["memory_gib"].values())
        host = f" ({row['host_gib']:,.0f} GiB there)" if row["host_gib"] else ""
        table.add_row(f"  {row['machine']}", memory, duration(3600 * row["hours"]), row["sharding"] + host)
        changes = " ".join(f"--set {name}={value}" for name, value in row["settings"].items())
        settings += [f"  {row['machine']}: {changes}"] if changes else []
    out.print(table)
    for line in settings:
        out.print(Text(line), soft_wrap=True)
    if any("placement.machines" in (row["settings"] or {}) for row in machines):
        out.print(Text("  placement.scratch is a folder that all machines see; the others join by `ray start`"))


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
