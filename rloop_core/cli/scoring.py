"""A summary of scores on the screen, and the k that it has unless others are asked for."""

from __future__ import annotations

from typing import Any

from rloop_core.cli.options import console

_USUAL_KS = (1, 8, 16, 32)


def default_ks(samples: int) -> tuple[int, ...]:
    """The usual k that this many samples a problem allow."""
    return tuple(k for k in _USUAL_KS if k <= samples)


def show_summary(title: str, summary: dict[str, Any]) -> None:
    """A small table: each metric with its interval, and what it rests on."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, value in summary.items():
        if isinstance(value, dict) and "low" in value:
            table.add_row(name, f"{value['value']:.2%}", f"{value['low']:.2%} to {value['high']:.2%}")
    out = console()
    out.print(table)
    facts = [
        f"{summary['problems']:,} problems",
        f"{summary['samples']:,} samples",
        f"{summary['truncated']:.1%} truncated",
    ]
    if summary.get("mean_length"):
        facts.append(f"{summary['mean_length']:,.0f} tokens a sample")
    if summary.get("sampling_sd") is not None:
        facts.append(f"sampling sd of avg {summary['sampling_sd']:.2%}")
    if summary.get("malformed_skipped"):
        facts.append(f"{summary['malformed_skipped']:,} malformed lines skipped")
    out.print(", ".join(facts))
    if verdicts := summary.get("verdicts"):
        out.print("verdicts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(verdicts.items())))
