"""Run in a grader's own environment: `serve.py JUDGE ROWS LIMIT` prints {id, correct, extracted, note} of each row.

Standard library only, and started by its path, since the project is not installed there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import multiprocessing
import os
import resource
import signal
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
    spec = importlib.util.spec_from_file_location(path.stem, path)
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


def grade_all(judge: Judge, rows: list[dict[str, Any]], replies: Any) -> None:
    """Judge rows in order: the body of a forked process."""
    os.setsid()
    for row in rows:
        replies.send_bytes(json.dumps(graded(judge, row)).encode())


def main(name: str, file: str, limit: float) -> None:
    """Print a reply to each row; after one that hangs or kills its process, the next process goes on."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # so that a grader's prints do not mix with the replies
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    judge = load_judge(name)
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    context = multiprocessing.get_context("fork")
    while rows:
        replies, other_end = context.Pipe(duplex=False)
        process = context.Process(target=grade_all, args=(judge, rows, other_end))
        process.start()
        assert process.pid
        other_end.close()
        why = f"killed after {limit:g} s"
        try:
            while rows and replies.poll(limit):
                output.write(replies.recv_bytes().decode() + "\n")
                del rows[0]
        except EOFError:
            why = "its process died"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
        if rows:
            output.write(json.dumps({"id": rows.pop(0)["id"], "correct": None, "extracted": None, "note": why}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
