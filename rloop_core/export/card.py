"""The model card: what the policy is, where it comes from, what it scores, how to load it."""

from __future__ import annotations

import html
import json
import re

from rloop_core import __version__
from rloop_core.report.evaluation import EvaluationRow, evaluation_rows
from rloop_core.report.reading import RunRecord

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def model_card(run: RunRecord, iteration: int) -> str:
    """README.md in the hub's format; every name from outside is escaped for Markdown and HTML."""
    config, manifest = run.config, run.manifests[iteration, run.config.policy_stage]
    base = config.policy.path
    header = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [rloop, reinforcement-learning]",
    ]
    if _HUB_ID.match(base):
        header.append(f"base_model: {json.dumps(base)}")
    versions = ", ".join(f"{name} {number}" for name, number in sorted(manifest.versions.items()))
    rows = [row for row in evaluation_rows(run) if row.iteration in (-1, iteration)]
    parts = [
        "\n".join([*header, "---"]),
        f"# {text(run.name)}, {text(run.policy_name(iteration))}",
        _story(run, iteration),
        f"Base policy: {code(base + (f'@{config.policy.revision}' if config.policy.revision else ''))}.",
        "## Evaluation",
        evaluation(rows),
        "## How to load",
        _LOADING.format(template=config.prompt.template),
        "## Origin",
        "\n".join(
            [
                "| what | value |",
                "|---|---|",
                f"| artifact digest | {code(manifest.digest)} |",
                f"| fingerprint | {code(manifest.fingerprint)} |",
                *(f"| input {code(entry.uri)} | {code(entry.digest)} |" for entry in manifest.inputs),
                f"| seed | {manifest.seed} |",
                f"| made | {text(manifest.created_at)} |",
                f"| versions | {text(versions)} |",
                f"| exported by | rloop {__version__} |",
            ]
        ),
        "<details><summary>Config of the run</summary>\n\n<pre>"
        + html.escape(json.dumps(config.model_dump(mode="json"), indent=1))
        + "</pre>\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _story(run: RunRecord, iteration: int) -> str:
    problems = text(run.config.problems.label)
    if run.config.arm == "vanilla-rl":
        return (
            f"The policy that {run.config.explore.steps} RL steps (DAPO) on {problems} ended with, in the run "
            f"{code(run.name)}: the control arm of an RLoop run, without any fine-tuning."
        )
    return (
        f"The policy that iteration {iteration} of the RLoop run {code(run.name)} ended with. RLoop explores with "
        f"reinforcement learning (DAPO) on {problems}, keeps the correct trajectories of hard problems, and fine-tunes "
        "the policy that the exploration started from on them."
    )


def evaluation(rows: list[EvaluationRow]) -> str:
    """A Markdown table of base and policy on every set, with intervals."""
    if not rows:
        return "This policy was not evaluated in the run."
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    lines = [f"| problems | policy | {' | '.join(metrics)} |", "|---|---|" + "---|" * len(metrics)]
    for row in rows:
        cells = [cell(row.metrics.get(name)) for name in metrics]
        lines.append(f"| {text(row.problem_set)} ({row.problems}) | {text(row.policy)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "In percent, with 95 % bootstrap intervals over problems."])


def cell(one: dict[str, float] | None) -> str:
    """A metric with its interval, in percent."""
    return f"{100 * one['value']:.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]" if one else ""


def text(value: str) -> str:
    """Free text without any meaning in Markdown or HTML, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~-])", r"\\\1", html.escape(" ".join(value.split()), quote=False))


def code(value: str) -> str:
    """Text in a code element that it cannot leave."""
    escaped = html.escape(" ".join(value.split()))
    for sign in "|`*_[]~":
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return f"<code>{escaped}</code>"


_LOADING = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH")
```

Prompts were rendered with the template `{template}` of rloop (`rloop_core.problems.render`)."""
