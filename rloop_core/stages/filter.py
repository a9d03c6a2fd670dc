"""Stage filter: correct trajectories of hard problems become the expert set (paper 4.2 and 5.1)."""

from __future__ import annotations

import json
import shutil

from rloop_core.stages.execute import StageContext
from rloop_core.stages.job import StageOutcome
from rloop_core.trajectories import EXPERTS_FILE, LEDGER_FILE, TRAJECTORIES_FOLDER
from rloop_core.trajectories.filter import filter_experts


def run(context: StageContext) -> StageOutcome:
    """Filter, and keep the ledger of how many trajectories each step removed."""
    files = sorted((context.folder("trajectories") / TRAJECTORIES_FOLDER).glob("*.parquet"))
    shutil.rmtree(context.out, ignore_errors=True)
    config = context.config
    report = filter_experts(files, config.filter, context.out / EXPERTS_FILE, config.seed)
    content = report.to_dict()
    (context.out / LEDGER_FILE).write_text(json.dumps(content, indent=1, sort_keys=True))
    return StageOutcome({"trajectories": report.trajectories, "problems": report.problems}, content)
