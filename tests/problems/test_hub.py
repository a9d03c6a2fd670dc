"""Data sets through the real hub libraries, from a hub on the loopback: pins, counts, caches, and clear errors."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rloop_core.problems import REGISTRY
from rloop_core.problems.registry import HubSource
from tests.problems.dapo_rows import SCHEMA, dapo
from tests.problems.hub_server import Hub, Repository, serve

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.process
WRAPPED = "BytedTsinghua-SIA/DAPO-Math-17k"
OTHER_COMMIT = "0" * 40
FEW = dapo(problems=30, copies=10).rows

LOAD = """
import json, sys
from rloop_core.config import ProblemSource
from rloop_core.errors import RLoopError
from rloop_core.problems import load_problems
for line in sys.stdin:
    try:
        loaded = load_problems(ProblemSource(**json.loads(line)))
        told = {"ledger": loaded.ledger, "digest": loaded.digest, "warnings": loaded.warnings,
                "rows": [[one.problem, one.gold] for one in loaded][:8]}
    except RLoopError as error:
        told = {"error": str(error)}
    print(json.dumps(told), flush=True)
"""


def load(sources: list[dict[str, Any]], endpoint: str | None, home: Path) -> list[dict[str, Any]]:
    """What loading each source gives in a fresh process that knows this hub, or none, and this cache."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    environment |= {"HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        input="".join(json.dumps(source) + "\n" for source in sources),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def parquet(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), content)
    return content.getvalue()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def card(**configs: str) -> bytes:
    """A data set card whose header names each config's folder; the first is the default."""
    lines = ["---", "configs:"]
    for name, splits in configs.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        for split in splits.split():
            lines += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    return "\n".join([*lines, "---", ""]).encode()


def commit(source: HubSource) -> str:
    return source.revision or "1" * 40


def _processed(n: int) -> dict[str, Any]:
    prompt = [{"content": f"Solve d{n}?", "role": "user"}]
    return {"prompt": f"d{n}?", "solution": str(n), "source_prompt": prompt, "reward_model": {"ground_truth": str(n)}}


def repositories() -> dict[str, Repository]:
    """The known data sets in the hub's schemas."""
    shard = "-00000-of-00001.parquet"
    aime = [{"id": n, "problem": f"a{n}?", "solution": "", "answer": f"{n:03}"} for n in range(30)]
    omni = [{"domain": ["d"], "problem": f"o{n}?", "solution": "s", "answer": f"\\sqrt{{{n}}}"} for n in range(500)]
    school = [{"question": f"g{n}?", "answer": f"1+1=<<1+1=2>>2\n#### {n:,}"} for n in range(7473)]
    processed = [_processed(n) for n in range(17_398)]
    files: dict[str, dict[str, bytes]] = {
        "aime24": {f"data/train{shard}": parquet(aime)},
        "minerva_math": {"test.jsonl": jsonl([{"question": f"m{n}?", "answer": f"{n}e-7"} for n in range(272)])},
        "omni_math": {f"data/test{shard}": parquet(omni)},
        "math500": {
            "README.md": b"---\nlicense: mit\n---\n",
            "test.jsonl": jsonl([{"problem": f"p{n}?", "answer": str(n)} for n in range(500)]),
        },
        "dapo17k": {
            "README.md": card(all="train", en="train"),
            f"all/train{shard}": parquet(processed),
            f"en/train{shard}": parquet(processed[:50]),
        },
        "gsm8k": {
            "README.md": card(main="train test", socratic="test"),
            f"main/train{shard}": parquet(school),
            f"main/test{shard}": parquet(school[:1319]),
            f"socratic/test{shard}": parquet(school[:5]),
        },
    }
    found = {REGISTRY[name].hub_id: Repository(commit(REGISTRY[name]), content) for name, content in files.items()}
    found[WRAPPED] = Repository("3" * 40, {"data/dapo-math-17k.parquet": parquet(FEW, SCHEMA)})
    found["someone/own"] = Repository("2" * 40, {"train.jsonl": jsonl([{"problem": "own?", "answer": "1"}])})
    return found


ASKED: dict[str, dict[str, Any]] = {
    **{name: {"source": name} for name in REGISTRY},
    "train": {"source": "gsm8k", "split": "train"},
    "by id": {"source": REGISTRY["math500"].hub_id},
    "english": {"source": "dapo17k", "params": {"config": "en"}},
    "wrapped": {"source": WRAPPED},
    "own": {"source": "someone/own"},
    "no data set": {"source": "someone/nothing"},
    "no revision": {"source": "aime24", "revision": OTHER_COMMIT},
    "no split": {"source": "aime24", "split": "test"},
    "no subset": {"source": "gsm8k", "params": {"config": "hard"}},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def visit(home: Path) -> tuple[Hub, dict[str, dict[str, Any]]]:
    """Everything asked of the hub, in one process; what is in the cache afterwards is what that process left."""
    with serve(repositories()) as hub:
        return hub, dict(zip(ASKED, load(list(ASKED.values()), hub.url, home), strict=True))


@pytest.mark.parametrize("name", REGISTRY)
def test_a_known_set_is_read_at_its_pinned_commit(visit: Any, name: str) -> None:
    hub, told = visit
    source = REGISTRY[name]
    assert told[name]["ledger"]["rows_read"] == source.rows[source.split]
    assert told[name]["ledger"]["kept"] == source.rows[source.split]
    asked = hub.revisions_asked(source.hub_id) - {OTHER_COMMIT}
    # Unpinned, the newest commit is looked up first and read then.
    assert asked == ({source.revision} if source.revision else {"main", commit(source)})


def test_the_hubs_schemas_give_problems_and_golds(visit: Any) -> None:
    _, told = visit
    assert told["aime24"]["rows"][7] == ["a7?", "007"]
    assert told["minerva_math"]["rows"][2] == ["m2?", "2e-7"]
    assert told["omni_math"]["rows"][2] == ["o2?", "\\sqrt{2}"]
    assert told["dapo17k"]["rows"][3] == ["d3?", "3"]
    assert told["gsm8k"]["rows"][4] == ["g4?", "4"]
    assert told["train"]["ledger"]["kept"] == 7473
    assert told["english"]["ledger"]["kept"] == 50
    assert told["own"]["rows"] == [["own?", "1"]]
    assert told["by id"]["digest"] == told["math500"]["digest"]
    assert all(not problem.startswith("Solve") for problem, _ in told["wrapped"]["rows"])


def test_what_may_change_is_warned_of_with_the_commit_to_pin(visit: Any) -> None:
    told = {name: found.get("warnings") for name, found in visit[1].items()}
    assert told["aime24"] == told["gsm8k"] == told["by id"] == []
    (warning,) = told["omni_math"]
    assert warning.startswith("reliable-agents/Omni-MATH-500 may change on the hub: no revision is not a commit")
    assert f"revision: {'1' * 40}" in warning
    assert f"no revision is not a commit, such as revision: {'3' * 40}" in told["wrapped"][0]


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("no data set", "source: the hub has no data set someone/nothing, or it needs a login (fix: check the name"),
        ("no revision", f"revision: data set HuggingFaceH4/aime_2024 has no revision {OTHER_COMMIT}"),
        ("no split", "split: data set HuggingFaceH4/aime_2024 cannot be loaded: Unknown split"),
        ("no subset", "split: data set openai/gsm8k cannot be loaded: BuilderConfig 'hard' not found"),
    ],
)
def test_missing_hub_sources_give_one_clear_error(visit: Any, what: str, line: str) -> None:
    _, told = visit
    assert line in told[what]["error"]
    assert "\n" not in told[what]["error"]


def test_without_the_hub_the_cache_serves_only_the_pinned_commit(visit: Any, home: Path) -> None:
    _, online = visit
    sources = [
        {"source": "math500"},
        {"source": "math500", "revision": OTHER_COMMIT},
        {"source": "someone/never-read"},
    ]
    cached, other, absent = load(sources, None, home)
    assert cached["digest"] == online["math500"]["digest"]
    assert f"has HuggingFaceH4/MATH-500 at {REGISTRY['math500'].revision}, not at {OTHER_COMMIT}" in other["error"]
    assert "unreachable, and someone/never-read is not in the local cache" in absent["error"]
