"""Run in a grader's own environment: read JSON lines {id, completion, gold}, write {id, correct, extracted, note}.

Standard library only, and started by its path, since the project is not installed there.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = 3 * 2**30
"""Address space of a grader in bytes: for a power tower some would take all memory."""
Judge = Callable[[str, str], "tuple[bool, str | None]"]


def load_judge(name: str) -> Judge:
    """Return the `judge` of judges/<name>.py."""
    path = Path(__file__).parent / "judges" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    judge: Judge = module.judge
    return judge


def graded(judge: Judge, row: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a row; of a list of golds any will do."""
    golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
    correct, extracted, note = False, None, ""
    try:
        for gold in golds:
            correct, extracted = judge(row["completion"], str(gold))
            if correct:
                break
    except Exception as error:  # a grader that raises has not called it correct
        correct, note = False, f"raised {type(error).__name__}"
    return {"id": row["id"], "correct": correct, "extracted": extracted, "note": note}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # so that a grader's prints do not mix with the replies
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    judge = load_judge(sys.argv[1])
    replies.write('{"ready": true}\n')
    for line in sys.stdin:
        replies.write(json.dumps(graded(judge, json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
