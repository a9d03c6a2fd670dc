"""The model card: what the policy is, where it comes from, what it scores, how to load it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection

from rloop_core import __version__
from rloop_core.evaluation.selection import BIASED
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows, snapshot_rows
from rloop_core.results.report.reading import RunRecord
from rloop_core.results.report.selection import Selected, checkpoint_name

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


def model_card(run: RunRecord, iteration: int, step: int = 0, selected: Selected | None = None) -> str:
    """README.md in the hub's format; every name from outside is escaped for Markdown and HTML.

    Args:
        run: The run.
        iteration, step: The policy: what an iteration ended with, or its snapshot after so many RL steps.
        selected: How it was chosen among all, where it was.
    """
    config = run.config
    manifest = run.manifests[iteration, "explore" if step else config.policy_stage]
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
    rows = [row for row in evaluation_rows(run) if row.iteration in (-1, *([] if step else [iteration]))]
    rows += snapshot_rows(run, iteration, step, checkpoint_name(run, iteration, step)) if step else []
    biased = selected.biased if selected else frozenset()
    parts = [
        "\n".join([*header, "---"]),
        f"# {text(run.name)}, {text(checkpoint_name(run, iteration, step))}",
        _story(run, iteration, step),
        *([_choice(selected)] if selected else []),
        f"Base policy: {code(base + (f'@{config.policy.revision}' if config.policy.revision else ''))}.",
        "## Evaluation",
        evaluation(rows, biased),
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


def _choice(selected: Selected) -> str:
    chosen = selected.selection
    where = f"on {text(chosen.on)} by {text(chosen.metric)}"
    if not selected.biased:
        return f"It was chosen {where}, with no other checkpoint to choose from."
    return (
        f"It was chosen as the best of {len(chosen.values)} checkpoints {where}. Its value there is biased upwards, "
        "for luck has a part in being the best; its values on other sets are not."
    )


def _story(run: RunRecord, iteration: int, step: int) -> str:
    problems = text(run.config.problems.label)
    if step:
        return (
            f"The policy after RL step {step} (DAPO) on {problems} in the exploration of iteration {iteration} of the "
            f"run {code(run.name)}: a snapshot, without the fine-tuning that follows in RLoop."
        )
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


def evaluation(rows: list[EvaluationRow], biased: Collection[str] = ()) -> str:
    """A Markdown table of base and policy on every set, with intervals; values on the sets in `biased` are marked."""
    if not rows:
        return "This policy was not evaluated in the run."
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    lines = [f"| problems | policy | {' | '.join(metrics)} |", "|---|---|" + "---|" * len(metrics)]
    for row in rows:
        cells = [cell(row.metrics.get(name)) for name in metrics]
        policy = text(row.policy) + (f" ({BIASED})" if row.problem_set in biased and row.iteration >= 0 else "")
        lines.append(f"| {text(row.problem_set)} ({row.problems}) | {policy} | {' | '.join(cells)} |")
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
