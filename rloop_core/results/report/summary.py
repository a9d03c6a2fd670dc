"""A run's result in a sentence and in a table of plain text, for places that show no page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rloop_core.config import Config
from rloop_core.results.report.evaluation import EvaluationRow

_MOST_SETS = 3


def result_sentence(config: Config, rows: Sequence[EvaluationRow]) -> str:
    """ "3 iterations: held-out avg@16 41.2 -> 58.3 %, pass@16 84.0 -> 98.0 %", from the base to the last policy."""
    done = f"{config.iterations} iteration{'s' if config.iterations > 1 else ''}"
    if config.arm == "vanilla-rl":
        done = f"vanilla RL, {config.explore.steps:,} RL steps"
    sets = list(dict.fromkeys(row.problem_set for row in rows))
    parts = [_change([row for row in rows if row.problem_set == label]) for label in sets[:_MOST_SETS]]
    more = f"; and {len(sets) - _MOST_SETS} more sets" if len(sets) > _MOST_SETS else ""
    return f"{done}: {'; '.join(parts)}{more}" if parts else done


def _change(rows: Sequence[EvaluationRow]) -> str:
    """avg@n and the pass@k of the greatest k, of the first row and the last."""
    first, last = rows[0].metrics, rows[-1].metrics
    passes = [name for name in last if name.startswith("pass@")]
    words = []
    for name in dict.fromkeys([*list(last)[:1], *passes[-1:]]):
        before = f"{100 * first[name]['value']:.1f} -> " if len(rows) > 1 and name in first else ""
        words.append(f"{name} {before}{100 * last[name]['value']:.1f} %")
    return f"{rows[0].problem_set} {', '.join(words)}"


def markdown_table(rows: Sequence[EvaluationRow], as_text: Callable[[str], str]) -> str:
    """A Markdown table a problem set: a row a policy, and last the paired difference of the last one to the base.

    Args:
        rows: As `evaluation_rows` gives them.
        as_text: Makes free text harmless.
    """
    tables = []
    for label in dict.fromkeys(row.problem_set for row in rows):
        own = [row for row in rows if row.problem_set == label]
        names = list(dict.fromkeys(name for row in own for name in row.metrics if name != "pass@1"))
        lines = [f"| {as_text(label)}, % | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
        lines += [f"| {as_text(row.policy)} | {' | '.join(_cells(row.metrics, names))} |" for row in own]
        if own[-1].differences:
            cells = (f"**{cell}**" if cell else "" for cell in _cells(own[-1].differences, names, "+"))
            lines.append(f"| **{as_text(own[-1].policy)} - base** | {' | '.join(cells)} |")
        samples = f"{own[0].problems} problems, {own[0].samples:,} samples a policy"
        tables.append("\n".join([*lines, "", f"{samples}; 95 % bootstrap intervals over problems.", ""]))
    return "\n".join(tables)


def _cells(values: Mapping[str, Mapping[str, float]], names: Sequence[str], sign: str = "") -> list[str]:
    return [percent_interval(values[name], sign) if name in values else "" for name in names]


def percent_interval(one: Mapping[str, float], sign: str = "") -> str:
    """ "31.2 [9.4, 53.1]", in percent; with `+` as `sign` for differences."""
    low, high = 100 * one["low"], 100 * one["high"]
    return f"{100 * one['value']:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
