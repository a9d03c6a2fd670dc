"""Find what a store holds and nothing uses, without touching anything, and delete it under the run's lease.

Only what is known to be useless is garbage. Everything that a manifest names is kept, and so are records, problem sets
and everything that is not recognised, cannot be read, or may be in the middle of being published.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rloop_core.errors import LeaseError, RLoopError, StoreError, StoreUnavailable
from rloop_core.stages.registry import STAGES
from rloop_core.stages.run_record import read_run_config, runs_of
from rloop_core.store import BASE_ITERATION, Entry, Lease, Manifest, Store, iteration_folder, read_manifests
from rloop_core.store.lease import PATIENCE_SECONDS, read_holder
from rloop_core.store.local import is_unfinished

SCRATCH = ".scratch"
"""Prefix of each user's folder of unfinished work in a local store."""
_PLACE = re.compile(rf"(?:iteration-(\d{{3,}})|base)/({'|'.join(STAGES)})/(.+)")
Place = tuple[int, str]
Manifests = Mapping[Place, Manifest | RLoopError | None]
_CLAIM = re.compile(r"lease-takeover-(.+)-\d+")

_UNNAMED = "of an artifact that was superseded or never finished"
_KILLED_WRITE = "left by a write that was killed"
_UPLOAD = "an upload that was never completed"
_SCRATCH = "scratch of a finished stage"


@dataclass(frozen=True)
class Item:
    """One object to delete, or one folder of scratch, and why nothing uses it."""

    entry: Entry
    why: str


@dataclass
class Garbage:
    """Garbage of one run."""

    run: str
    items: list[Item] = field(default_factory=list)
    younger: int = 0
    """Number of things that are garbage but not old enough."""
    skipped: str | None = None
    """Why this run is skipped; None if it is not."""
    notes: list[str] = field(default_factory=list)
    """What could not be judged, and is kept."""

    @property
    def bytes(self) -> int:
        """Total size."""
        return sum(item.entry.bytes for item in self.items)


def find_garbage(
    store: Store, runs: Sequence[str], older_than: float, patience: float = PATIENCE_SECONDS
) -> list[Garbage]:
    """Return what could be deleted; change nothing.

    Args:
        store: The object store.
        runs: Names; none for all runs.
        older_than: Minimum age in seconds, by the store's own clock.
        patience: Seconds without a heartbeat after which a run's holder on another machine is taken for dead.

    Raises:
        StoreError: There is no such run, or the store cannot be read.
    """
    for run in runs:
        read_run_config(store, run)
    garbage = []
    for run in runs or runs_of(store):
        holder = Lease(store, run, patience=patience).living_holder()
        skipped = f"{holder} is working on it"
        garbage.append(Garbage(run, skipped=skipped) if holder else _of_run(store, run, older_than))
    return garbage


def delete_garbage(
    store: Store, found: Sequence[Garbage], older_than: float, patience: float = PATIENCE_SECONDS
) -> list[Garbage]:
    """Delete what was found and still is garbage, each run's under its lease; return what was deleted.

    Raises:
        StoreError: The store refuses; what was deleted before was garbage.
    """
    deleted = []
    for planned in found:
        if planned.items:
            try:
                with Lease(store, planned.run, patience=patience) as lease:
                    now = _of_run(store, planned.run, older_than)
                    lease.ensure_held()
                    deleted.append(_delete(store.guarded(lease.ensure_held), planned, now))
            except LeaseError as error:
                deleted.append(Garbage(planned.run, skipped=error.what))
        else:
            deleted.append(planned)
    return deleted


def _of_run(store: Store, run: str, older_than: float) -> Garbage:
    # Files are listed before manifests are read: a manifest that is published in between names its files.
    entries = store.entries(run)
    now = store.now()
    garbage = Garbage(run)
    manifests = _manifests(store, run, entries, garbage)
    named = {
        f"{manifest.folder}/{path}"
        for manifest in manifests.values()
        if isinstance(manifest, Manifest)
        for path in ("manifest.json", *(file.path for file in manifest.files))
    }
    lease = (read_holder(store, f"{run}/lease.json") or {}).get("token")
    items = []
    for entry in entries:
        key = entry.key.removeprefix(f"{run}/")
        place, claim = _place(key), _CLAIM.fullmatch(key)
        if entry.key in named:
            continue
        if is_unfinished(key) or (claim and claim[1] != lease):
            items.append(Item(entry, _KILLED_WRITE))
        elif place and not isinstance(manifests[place], RLoopError):
            items.append(Item(entry, _UNNAMED))
    items += [Item(entry, _UPLOAD) for entry in _uploads(store, run, garbage)]
    items += _finished_scratch(store, run, manifests)
    if store.is_local:
        linked = [item for item in items if _is_linked(store, item.entry.key)]
        garbage.notes += [f"{item.entry.key}: a symbolic link leads there; it is kept" for item in linked]
        items = [item for item in items if item not in linked]
    _take_old(garbage, items, now - older_than)
    return garbage


def _take_old(garbage: Garbage, items: Sequence[Item], before: float) -> None:
    """Add the items that are older than a moment; items without a date are young."""
    for item in items:
        if item.entry.modified is not None and item.entry.modified <= before:
            garbage.items.append(item)
        else:
            garbage.younger += 1


def _manifests(store: Store, run: str, entries: Sequence[Entry], garbage: Garbage) -> Manifests:
    """Return the manifest of every stage that has any file, or why it cannot be read; None if there is none."""
    places = (_place(entry.key.removeprefix(f"{run}/")) for entry in entries)
    manifests = read_manifests(store, run, dict.fromkeys(filter(None, places)))
    for error in manifests.values():
        if isinstance(error, StoreUnavailable):
            raise error
        if isinstance(error, RLoopError):
            garbage.notes.append(f"{error.field}: {error.what}; its files are kept")
    return manifests


def _place(key: str) -> Place | None:
    """Return iteration and stage of the stage folder that a key is in; None for other keys."""
    match = _PLACE.fullmatch(key)
    if match is None:
        return None
    iteration = BASE_ITERATION if match[1] is None else int(match[1])
    return (iteration, match[2]) if key.startswith(f"{iteration_folder('', iteration)[1:]}/") else None


def _uploads(store: Store, run: str, garbage: Garbage) -> list[Entry]:
    try:
        return store.uploads(run)
    except StoreUnavailable:
        raise
    except StoreError as error:
        garbage.notes.append(f"unfinished uploads cannot be listed: {error.what}")
        return []


def _finished_scratch(store: Store, run: str, manifests: Manifests) -> list[Item]:
    """Return work folders of a local store that became their stage's artifact, or are older than it."""
    if not store.is_local:
        return []
    top, items = store.local_path(""), []
    for folder in sorted(top.glob(f"{SCRATCH}*/{run}/*/*/*")):  # of those users whose folders this one may enter
        place = _place("/".join(folder.relative_to(top).parts[2:]))
        manifest = manifests.get(place) if place else None
        if not folder.is_dir() or not isinstance(manifest, Manifest):
            continue
        newest, size = _newest(folder)
        published = store.local_path(f"{manifest.folder}/manifest.json").stat().st_mtime
        if manifest.fingerprint.startswith(folder.name) or newest < published:
            items.append(Item(Entry(folder.relative_to(top).as_posix(), size, newest), _SCRATCH))
    return items


def _newest(folder: Path) -> tuple[float, int]:
    """Return the time of the last write in a folder, and its size in bytes."""
    newest, size = folder.stat().st_mtime, 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.lstat()
            newest, size = max(newest, stat.st_mtime), size + (stat.st_size if path.is_file() else 0)
    return newest, size


def _is_linked(store: Store, key: str) -> bool:
    """Return True if a symbolic link on the way to a file or folder may lead out of the store."""
    folder, root = store.local_path(key).parent, store.local_path("")
    return folder.resolve() != root.resolve() / folder.relative_to(root)


def _delete(store: Store, planned: Garbage, now: Garbage) -> Garbage:
    """Delete what was garbage when planned and is now."""
    wanted = {(item.entry.key, item.entry.upload) for item in planned.items}
    items = [item for item in now.items if (item.entry.key, item.entry.upload) in wanted]
    store.delete_entries([item.entry for item in items if item.why != _SCRATCH])
    if store.is_local:
        root = store.local_path("")
        for item in items:
            path = store.local_path(item.entry.key)
            if item.why == _SCRATCH:
                shutil.rmtree(path, ignore_errors=True)
            _remove_empty_folders(path.parent, root)
    return Garbage(planned.run, items, now.younger, None, now.notes)


def _remove_empty_folders(folder: Path, root: Path) -> None:
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent
