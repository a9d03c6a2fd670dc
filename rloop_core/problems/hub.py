"""Rows of data sets on the Hugging Face hub, at a pinned commit where one is known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import HubSource
from rloop_core.problems.sources import Rows, batch_rows, top_level

_BATCH = 1024
_COMMIT = re.compile("[0-9a-f]{40}")


def hub_rows(hub: HubSource, *, split: str | None, revision: str | None, config: str | None) -> Rows:
    """Return the rows of a hub data set; split, revision and config override the registry's.

    If the hub cannot be reached, the local cache is used, provided that it has the pinned commit.

    Raises:
        ProblemsError: The hub cannot be reached, or has no such data set, split, config or revision.
    """
    commit = revision or hub.revision
    table = _load(hub.hub_id, config or hub.config, split or hub.split, commit)
    # In the cache, a data set is a folder of its files, named by the commit.
    folders = [part for file in table.cache_files for part in Path(file["filename"]).parts if _COMMIT.fullmatch(part)]
    read = folders[-1] if folders else None
    is_pinned = bool(commit and _COMMIT.fullmatch(commit))
    if is_pinned and read and read != commit:  # offline, `datasets` takes any version of a data set from its cache
        what = f"the Hugging Face hub is unreachable, and the local cache has {hub.hub_id} at {read}, not at {commit}"
        fix = "connect to the network once, or set revision to the commit that is in the cache"
        raise ProblemsError(what, field="revision", fix=fix)
    such_as = f", such as revision: {read}, which was read" if read else ""
    warning = f"{hub.hub_id} may change on the hub: {commit or 'no revision'} is not a commit{such_as}"
    wanted = top_level((*hub.problem_columns, *hub.gold_columns), table.column_names)
    table = table.select_columns(wanted) if wanted else table
    rows = batch_rows(table.with_format("arrow").iter(batch_size=_BATCH))
    return Rows(rows, table.num_rows, () if is_pinned else (warning,))


def _load(hub_id: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return datasets.load_dataset(hub_id, config, split=split, revision=revision)
    except Exception as error:  # the library's own, a damaged cache, a full disk, a script-based data set
        what, field = f"data set {hub_id} cannot be loaded: {str(error)[:200] or type(error).__name__}", "source"
        fix = "check source, revision and the disk of HF_HOME"
        if isinstance(error.__cause__, RevisionNotFoundError):
            what, field = f"data set {hub_id} has no revision {revision}", "revision"
            fix = "name a commit, branch or tag that exists"
        elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
            what = f"the hub has no data set {hub_id}, or it needs a login"
            fix = "check the name, or run `hf auth login`"
        elif isinstance(error, ConnectionError | TimeoutError):
            what = f"the Hugging Face hub is unreachable, and {hub_id} is not in the local cache"
            fix = "check the network, or give the path of a JSONL or parquet file"
        elif isinstance(error, ValueError):
            field, fix = "split", "check split, revision and params.config"
        raise ProblemsError(what, field=field, fix=fix) from error
