"""Rows of data sets on the Hugging Face hub, at a pinned commit, with a count and a quick check of the connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import HubSource
from rloop_core.problems.sources import Rows, batch_rows, top_level

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 15.0
_BATCH = 1024
_COMMIT = re.compile("[0-9a-f]{40}")


def hub_rows(hub: HubSource, *, split: str | None, revision: str | None, config: str | None) -> Rows:
    """Return the rows of a hub data set; split, revision and config override the registry's.

    If the hub cannot be reached, the local cache is used, provided that it has the pinned commit.

    Raises:
        ProblemsError: The hub cannot be reached; it has no such data set, split, config or revision; or the number of
            rows is not that of the registry.
    """
    split = split or hub.split
    subset = config or hub.config
    commit = revision or hub.revision
    table = _load(hub.hub_id, subset, split, commit)
    # In the cache, a data set is a folder of its files, named by the commit.
    folders = [part for file in table.cache_files for part in Path(file["filename"]).parts if _COMMIT.fullmatch(part)]
    read = folders[-1] if folders else None
    is_pinned = bool(commit and _COMMIT.fullmatch(commit))
    if is_pinned and read and read != commit:  # offline, `datasets` takes any version of a data set from its cache
        what = f"the Hugging Face hub is unreachable, and the local cache has {hub.hub_id} at {read}, not at {commit}"
        fix = "connect to the network once, or set revision to the commit that is in the cache"
        raise ProblemsError(what, field="revision", fix=fix)
    is_known = revision is None and subset == hub.config
    expected = hub.rows.get(split) if is_known else None
    if expected is not None and table.num_rows != expected:
        at = f" at {commit[:8]}" if commit else ""
        what = f"{hub.hub_id}{at} gives {table.num_rows:,} rows of {split}, expected are {expected:,}"
        fix = "set revision (main is the newest) to accept what the hub has now"
        raise ProblemsError(what, field="revision", fix=fix)
    such_as = f", such as revision: {read}, which was read" if read else ""
    warning = f"{hub.hub_id} may change on the hub: {commit or 'no revision'} is not a commit{such_as}"
    wanted = top_level((*hub.problem_columns, *hub.gold_columns), table.column_names)
    table = table.select_columns(wanted) if wanted else table
    rows = batch_rows(table.with_format("arrow").iter(batch_size=_BATCH))
    digest = hub.digests.get(split) if is_known else None
    return Rows(rows, table.num_rows, () if is_pinned else (warning,), digest)


def _load(hub_id: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets
    from huggingface_hub.errors import RevisionNotFoundError

    reachable = _hub_answers()
    try:
        with _offline(not reachable):
            return datasets.load_dataset(hub_id, config, split=split, revision=revision)
    except Exception as error:  # the library's own, a damaged cache, a full disk, a script-based data set
        what, field = f"data set {hub_id} cannot be loaded: {str(error)[:200] or type(error).__name__}", "source"
        fix = "check source, revision and the disk of HF_HOME"
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            what = f"the hub has no data set {hub_id}, or it needs a login"
            fix = "check the name, or run `hf auth login`"
            if isinstance(error.__cause__, RevisionNotFoundError):
                what, field = f"data set {hub_id} has no revision {revision}", "revision"
                fix = "name a commit, branch or tag that exists"
        elif isinstance(error, ValueError):
            field, fix = "split", "check split, revision and params.config"
        elif not reachable or isinstance(error, ConnectionError | TimeoutError):
            what = f"the Hugging Face hub is unreachable, and {hub_id} is not in the local cache"
            fix = "check the network, or give the path of a JSONL or parquet file"
        raise ProblemsError(what, field=field, fix=fix) from error


def _hub_answers() -> bool:
    """Return True if the hub's address answers, with any status.

    The libraries try for 23 s before they give up, and for minutes where packets are dropped. One connection of up to
    5 s, enough for two lost packets, is faster.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session, httpx  # type: ignore[attr-defined]

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS))
    except (httpx.ConnectError, httpx.ConnectTimeout, OSError):
        return False
    except httpx.HTTPError:  # reachable; loading will report the error
        return True
    return True


@contextmanager
def _offline(yes: bool) -> Iterator[None]:
    """Restrict `datasets` to its cache within the block."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = yes or before
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
