"""Run in a grader's own environment: `serve.py JUDGE ROWS LIMIT` prints {id, correct, extracted, note} of each row.

Standard library only, and started by its path, since the project is not installed there. Graders are loaded by their
paths: importing their packages would need ray, datasets and torch, which the grading does not.
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
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEMORY = 3 * 2**30
"""Address space of a grader in bytes: for a power tower some would take all memory."""
Judge = Callable[[str, str], "tuple[bool, str | None]"]
"""Takes a completion and a gold; returns whether it is correct, and what was read as the answer."""
_PACKAGES = Path(sysconfig.get_paths()["purelib"])


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, _PACKAGES / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def math_dapo() -> Judge:
    """verl's `math_dapo`: `Answer: ...` in the last 300 characters, else a box in the last 100, compared as text."""
    grader = _load("verl/utils/reward_score/math_dapo.py")

    def judge(completion: str, gold: str) -> tuple[bool, str | None]:
        result = grader.compute_score(completion, gold)
        return bool(result["acc"]), result["pred"]

    return judge


def minerva_math() -> Judge:
    """lm-eval's `minerva_math`, its metric exact_match: the sentence that Minerva's prompt asks for, by sympy.

    As the task's process_docs and process_results do it, with the gold in a box as its data sets have it. Its second
    metric calls math-verify on the whole completion; that is the grader `math_verify` here.
    """
    task = _load("lm_eval/tasks/minerva_math/utils.py")

    def judge(completion: str, gold: str) -> tuple[bool, str | None]:
        boxed = task.remove_boxed(task.last_boxed_only_string(f"\\boxed{{{gold}}}"))
        answer = task.get_unnormalized_answer(completion)
        return bool(task.is_equiv(task.normalize_final_answer(answer), task.normalize_final_answer(boxed))), answer

    return judge


def math_verify() -> Judge:
    """math-verify on the whole completion, with its default readers and timeouts, the gold in a box."""
    from math_verify import parse, verify

    def judge(completion: str, gold: str) -> tuple[bool, str | None]:
        target = parse(completion)
        extracted = str(target[-1])[:200] if target else None
        return bool(verify(parse(f"\\boxed{{{gold}}}"), target)), extracted

    return judge


JUDGES = {maker.__name__: maker for maker in (math_dapo, minerva_math, math_verify)}


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
    judge = JUDGES[name]()
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
