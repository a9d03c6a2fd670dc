"""What a store holds and nothing names: found without touching anything, deleted under the run's lease.

Only what is known to be of no use is garbage. Whatever a manifest, `run.json` or `data.json` names stays, and so does
everything that is not recognised, that cannot be read, or that somebody may be publishing.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rloop_core.errors import ArtifactDamaged, LeaseError, RLoopError, StoreError, StoreUnavailable
from rloop_core.json_text import parse_json
from rloop_core.stages.data_record import read_data_record
from rloop_core.stages.job import STAGES
from rloop_core.stages.problem_store import source_key
from rloop_core.stages.run_record import read_run_config, runs_of
from rloop_core.store import BASE_ITERATION, Entry, Lease, Manifest, Store, iteration_folder, read_manifest
from rloop_core.store.local import TEMPORARY

SCRATCH = ".scratch"
LEASE_PATIENCE_SECONDS = 30.0
_PLACE = re.compile(rf"(?:iteration-(\d{{3,}})|base)/({'|'.join(STAGES)})/(.+)")
Place = tuple[int, str]
Manifests = dict[Place, Manifest | Literal["unreadable"] | None]
_CHECK = re.compile(r"\.rloop-write-check-[0-9a-f]{32}")
_CLAIM = re.compile(r"lease-takeover-(.+)-\d+")
_PROBLEMS = re.compile(r"problems/(?:clean-)?[0-9a-f]{20}\.json")

Why = Literal[
    "of an artifact that was superseded or never finished",
    "a problem set that nothing reads",
    "left by a write that was killed",
    "an order of a run that is over",
    "an upload that was never completed",
    "scratch of a finished stage",
]


@dataclass(frozen=True)
class Item:
    """One thing to delete.

    Attributes:
        entry: Where it is and how big; of scratch, a whole folder.
        why: Why nobody needs it.
    """

    entry: Entry
    why: Why


@dataclass
class Garbage:
    """What may be deleted of one run, or at the top of the store.

    Attributes:
        run: Its name; empty for what lies at the top.
        items: To be deleted, by key.
        younger: Things that would be, once they are old enough.
        skipped: Why this run is left alone; None when it is not.
        notes: What could not be judged, and is kept.
    """

    run: str
    items: list[Item] = field(default_factory=list)
    younger: int = 0
    skipped: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return sum(item.entry.bytes for item in self.items)


def find_garbage(
    store: Store, runs: Sequence[str], older_than: float, patience: float = LEASE_PATIENCE_SECONDS
) -> list[Garbage]:
    """What could be deleted; touches nothing.

    Args:
        store: The object store.
        runs: Names; none for all, and what lies at the top of the store.
        older_than: Seconds for which a thing must have lain there, by the store's own clock.
        patience: Seconds without a heartbeat after which a run's holder on another machine is taken for dead.

    Raises:
        StoreError: There is no such run, or the store cannot be read.
    """
    for run in runs:
        read_run_config(store, run)
    found = []
    for run in runs or runs_of(store):
        holder = Lease(store, run, patience=patience).living_holder()
        found.append(Garbage(run, skipped=f"{holder} is working on it") if holder else _of_run(store, run, older_than))
    return found if runs else [*found, _at_top(store, older_than)]


def delete_garbage(
    store: Store, found: Sequence[Garbage], older_than: float, patience: float = LEASE_PATIENCE_SECONDS
) -> list[Garbage]:
    """Delete what was found and is garbage still, each run's under its lease; returns what was deleted.

    Raises:
        StoreError: The store refuses; what was deleted before was garbage.
    """
    done = []
    for one in found:
        if not one.run:
            done.append(_delete(store, one, _at_top(store, older_than)))
        elif one.items:
            try:
                with Lease(store, one.run, patience=patience) as lease:
                    now = _of_run(store, one.run, older_than)
                    lease.ensure_held()
                    done.append(_delete(store, one, now))
            except LeaseError as error:
                done.append(Garbage(one.run, skipped=error.what))
        else:
            done.append(one)
    return done


def _of_run(store: Store, run: str, older_than: float) -> Garbage:
    # Files are listed before manifests are read: what is published in between is named then.
    entries = store.entries(run)
    now = store.now()
    garbage = Garbage(run)
    manifests = _manifests(store, run, entries, garbage)
    named = {f"{one.folder}/{path}" for one in manifests.values() if isinstance(one, Manifest) for path in _paths(one)}
    lease = _lease_token(store, run)
    items = []
    for entry in entries:
        key = entry.key.removeprefix(f"{run}/")
        place, claim = _place(key), _CLAIM.fullmatch(key)
        if entry.key in named:
            continue
        if key.rpartition("/")[2].startswith(TEMPORARY) or (claim and claim[1] != lease):
            items.append(Item(entry, "left by a write that was killed"))
        elif key.startswith(("orders/", "errands/")):  # nobody holds the run, so nobody waits for it
            items.append(Item(entry, "an order of a run that is over"))
        elif place and manifests[place] != "unreadable":
            items.append(Item(entry, "of an artifact that was superseded or never finished"))
    items += _unused_problems(store, run, entries, manifests, garbage)
    items += [Item(entry, "an upload that was never completed") for entry in _uploads(store, run, garbage)]
    items += _finished_scratch(store, run, manifests)
    if store.is_local:
        outside = [item for item in items if _is_outside(store, item.entry.key)]
        garbage.notes += [f"{item.entry.key}: a symbolic link leads there; it is kept" for item in outside]
        items = [item for item in items if item not in outside]
    _keep_the_young(garbage, items, now - older_than)
    return garbage


def _is_outside(store: Store, key: str) -> bool:
    """Whether a link on the way to a file or folder may lead out of the store."""
    folder = store.local_path(key).parent
    return folder.resolve() != store.local_path("").resolve() / folder.relative_to(store.local_path(""))


def _manifests(store: Store, run: str, entries: Sequence[Entry], garbage: Garbage) -> Manifests:
    """The manifest of every stage that has any file, None where there is none."""
    found: Manifests = {}
    for entry in entries:
        place = _place(entry.key.removeprefix(f"{run}/"))
        if place and place not in found:
            try:
                found[place] = read_manifest(store, run, *place)
            except StoreUnavailable:
                raise
            except (ArtifactDamaged, StoreError) as error:
                found[place] = "unreadable"
                garbage.notes.append(f"{error.field}: {error.what}; its files are kept")
    return found


def _place(key: str) -> Place | None:
    """Iteration and stage whose folder a key is in, None for anything else."""
    found = _PLACE.fullmatch(key)
    if found is None:
        return None
    iteration = BASE_ITERATION if found[1] is None else int(found[1])
    return (iteration, found[2]) if key.startswith(f"{iteration_folder('', iteration)[1:]}/") else None


def _paths(manifest: Manifest) -> list[str]:
    return ["manifest.json", *(file.path for file in manifest.files)]


def _lease_token(store: Store, run: str) -> str | None:
    try:
        return str(parse_json(store.read_bytes(f"{run}/lease.json")).get("token"))
    except (ValueError, AttributeError):
        return None
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _unused_problems(
    store: Store, run: str, entries: Sequence[Entry], manifests: Manifests, garbage: Garbage
) -> list[Item]:
    """Problem sets that neither a stage, nor the run's config, nor `data.json` leads to."""
    stored = [entry for entry in entries if _PROBLEMS.fullmatch(entry.key.removeprefix(f"{run}/"))]
    if not stored or "unreadable" in manifests.values():
        return []
    try:
        config, data = read_run_config(store, run), read_data_record(store, run)
    except StoreUnavailable:
        raise
    except RLoopError as error:
        garbage.notes.append(f"{error.field}: {error.what}; the run's problem sets are kept")
        return []
    wanted = {f"{run}/problems/{source_key(one)}.json" for one in (config.problems, *config.evaluate.sets)}
    if data is None or not wanted <= {entry.key for entry in stored}:
        return []  # not begun, or its sources cannot be seen from here: nobody can say what they are called
    inputs = [one for manifest in manifests.values() if isinstance(manifest, Manifest) for one in manifest.inputs]
    digests = {one.digest for one in data.sets} | {one.digest for one in inputs}
    uris = tuple(one.uri for one in inputs)
    unused = []
    for entry in stored:
        if entry.key in wanted or any(uri.endswith(f"/{entry.key}") for uri in uris):
            continue
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if parse_json(store.read_bytes(entry.key))["digest"] not in digests:
                unused.append(Item(entry, "a problem set that nothing reads"))
    return unused


def _uploads(store: Store, run: str, garbage: Garbage) -> list[Entry]:
    try:
        return store.uploads(run)
    except StoreUnavailable:
        raise
    except StoreError as error:
        garbage.notes.append(f"unfinished uploads cannot be listed: {error.what}")
        return []


def _finished_scratch(store: Store, run: str, manifests: Manifests) -> list[Item]:
    """Work folders of a local store whose stage has an artifact that they became, or that came after them."""
    root = store.local_path(SCRATCH) if store.is_local else None
    if root is None or not (root / run).is_dir():
        return []
    items = []
    for folder in sorted((root / run).glob("*/*/*")):
        place = _place(folder.relative_to(root / run).as_posix())
        manifest = manifests.get(place) if place else None
        if not folder.is_dir() or not isinstance(manifest, Manifest):
            continue
        newest, size = _newest(folder)
        made = store.local_path(f"{manifest.folder}/manifest.json").stat().st_mtime
        if manifest.fingerprint.startswith(folder.name) or newest < made:
            key = folder.relative_to(root.parent).as_posix()
            items.append(Item(Entry(key, size, newest), "scratch of a finished stage"))
    return items


def _newest(folder: Path) -> tuple[float, int]:
    """When anything in a folder was last written, and the bytes in it."""
    newest, size = folder.stat().st_mtime, 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stat = path.lstat()
            newest, size = max(newest, stat.st_mtime), size + (stat.st_size if path.is_file() else 0)
    return newest, size


def _at_top(store: Store, older_than: float) -> Garbage:
    garbage = Garbage("")
    checks = [entry for entry in store.top()[1] if _CHECK.fullmatch(entry.key)]
    items = [Item(entry, "left by a write that was killed") for entry in checks]
    _keep_the_young(garbage, items, store.now() - older_than)
    return garbage


def _keep_the_young(garbage: Garbage, items: Sequence[Item], before: float) -> None:
    """Take over what is older than a moment; what the store does not date is young."""
    for item in items:
        if item.entry.modified is not None and item.entry.modified <= before:
            garbage.items.append(item)
        else:
            garbage.younger += 1


def _delete(store: Store, planned: Garbage, now: Garbage) -> Garbage:
    """Delete what is garbage in both looks."""
    wanted = {(item.entry.key, item.entry.upload) for item in planned.items}
    items = [item for item in now.items if (item.entry.key, item.entry.upload) in wanted]
    store.delete_entries([item.entry for item in items if item.why != "scratch of a finished stage"])
    if store.is_local:
        for item in items:
            path = store.local_path(item.entry.key)
            if item.why == "scratch of a finished stage":
                shutil.rmtree(path, ignore_errors=True)
            _remove_empty(path.parent, store.local_path(""))
    return Garbage(planned.run, items, now.younger, None, now.notes)


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and those above it, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent
