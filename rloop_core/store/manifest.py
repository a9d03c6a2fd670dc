"""Manifests: an artifact exists once its manifest does, and is what the manifest says or is not used.

Prefect's results and DVC's outputs know neither a folder of many objects that exists all at once, by a single PUT, nor
the digests of what it was made from.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator

from rloop_core.errors import ArtifactDamaged, RLoopError, StageError, StoreError
from rloop_core.json_text import parse_json
from rloop_core.store.cache import Cache
from rloop_core.store.canonical import content_digest, file_sha256
from rloop_core.store.checksummed import hash_of, is_hash
from rloop_core.store.local import replace_bytes
from rloop_core.store.objects import Store

SCHEMA_VERSION: Literal[1] = 1
BASE_ITERATION = -1
"""Iteration number under which the evaluation of theta_0 is kept (folder `base`)."""
_UPLOADS = 3
_AT_ONCE = 8
_CHECKED = ".checked.json"
_ITSELF = "manifest.json"
"""Name among the `versions` in a manifest's file under which it carries the hash of everything else in it: a manifest's
keys are fixed, and no digest of files covers its figures."""


Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Record):
    """One file of an artifact; `path` is relative to the manifest's folder."""

    path: str
    bytes: Count
    sha256: str

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if path == "manifest.json" or any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError(f"{path!r} is not a file of an artifact")
        return path


class InputEntry(_Record):
    """One artifact (or outside model) that a stage read."""

    uri: str
    digest: str


class Manifest(_Record):
    """The contract of design.md section 6; its `digest` covers the files' contents alone."""

    schema_version: Literal[1] = SCHEMA_VERSION
    run: str
    iteration: int
    stage: str
    fingerprint: str
    inputs: tuple[InputEntry, ...]
    identity: dict[str, Any]
    files: tuple[FileEntry, ...]
    digest: str
    counts: dict[str, Any]
    metrics: dict[str, Any]
    versions: dict[str, str]
    seed: int
    created_at: str
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @field_validator("counts")
    @classmethod
    def _are_counts(cls, counts: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Whole numbers; those of an evaluation by problem set."""
        by_set = info.data.get("stage") == "evaluate"
        return TypeAdapter(dict[str, Count | dict[str, Count]] if by_set else dict[str, Count]).validate_python(counts)

    @property
    def folder(self) -> str:
        """Key of the artifact's folder in the store."""
        return stage_folder(self.run, self.iteration, self.stage)


def iteration_folder(run: str, iteration: int) -> str:
    """`<run>/iteration-000`, or `<run>/base` for the evaluation of theta_0."""
    return f"{run}/base" if iteration == BASE_ITERATION else f"{run}/iteration-{iteration:03d}"


def stage_folder(run: str, iteration: int, stage: str) -> str:
    """Key of a stage's folder: `<run>/iteration-000/<stage>`."""
    return f"{iteration_folder(run, iteration)}/{stage}"


def manifest_key(run: str, iteration: int, stage: str) -> str:
    """Key of a stage's manifest."""
    return f"{stage_folder(run, iteration, stage)}/manifest.json"


def read_manifest(store: Store, run: str, iteration: int, stage: str) -> Manifest | None:
    """The stage's manifest, or None when there is no artifact.

    Raises:
        ArtifactDamaged: The manifest is there but is not one, or was altered.
        StoreError: It was written by a newer rloop.
    """
    key = manifest_key(run, iteration, stage)
    text = store.find_bytes(key)
    if text is None:
        return None
    if _is_altered(text):
        raise ArtifactDamaged(
            "was altered: its own hash differs", field=store.uri_of(key), fix="the stage is run again"
        )
    try:
        parse_json(text, finite=True)
        manifest = Manifest.model_validate_json(text)
    except ValueError as error:  # ValidationError is one
        if (newer := _schema_version(text)) > SCHEMA_VERSION:
            what = f"has schema version {newer}; this rloop reads {SCHEMA_VERSION}"
            raise StoreError(
                what, field=store.uri_of(key), fix="use the rloop that wrote it, or a newer one"
            ) from error
        raise ArtifactDamaged(
            f"is not a manifest: {_reason(error)}", field=store.uri_of(key), fix="the stage is run again"
        ) from error
    if manifest.digest != content_digest((file.path, file.sha256) for file in manifest.files):
        raise ArtifactDamaged(
            "was altered: its digest is not its files'", field=store.uri_of(key), fix="the stage is run again"
        )
    named = (manifest.run, manifest.iteration, manifest.stage)
    if named != (run, iteration, stage):
        raise ArtifactDamaged(f"belongs to {named}", field=store.uri_of(key), fix="the stage is run again")
    plain = {name: value for name, value in manifest.versions.items() if name != _ITSELF}
    return manifest.model_copy(update={"versions": plain})


def read_manifests(
    store: Store, run: str, stages: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], Manifest | RLoopError | None]:
    """What `read_manifest` returns or raises for each (iteration, stage), in their order; on a remote store each is a
    request, and some are made at a time.
    """

    def read(key: tuple[int, str]) -> Manifest | RLoopError | None:
        try:
            return read_manifest(store, run, *key)
        except RLoopError as error:
            return error

    keys = list(stages)
    if store.is_local:
        return {key: read(key) for key in keys}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="manifests") as pool:
        return dict(zip(keys, pool.map(read, keys), strict=True))


def publish(
    store: Store,
    folder: Path,
    *,
    run: str,
    iteration: int,
    stage: str,
    fingerprint: str,
    inputs: tuple[InputEntry, ...],
    identity: dict[str, Any],
    counts: dict[str, Any],
    metrics: dict[str, Any],
    versions: dict[str, str],
    seed: int,
    seconds: float,
    names: Iterable[str] | None = None,
) -> Manifest:
    """Upload every file of a local folder, or those named, then the manifest with a single PUT, last.

    An older manifest of the stage is removed first, so that its files are never taken for the new ones; what it left
    in the folder is deleted when the new artifact stands.

    Raises:
        StageError: The stage's own figures or file names cannot be written into a manifest.
        StoreError: The store refuses; nothing is published then.
    """
    target = stage_folder(run, iteration, stage)
    if names is None:
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    entries = [(name, folder / name) for name in names]
    try:
        files = tuple(
            FileEntry(path=name, bytes=path.stat().st_size, sha256=file_sha256(path)) for name, path in entries
        )
        manifest = Manifest(
            run=run,
            iteration=iteration,
            stage=stage,
            fingerprint=fingerprint,
            inputs=inputs,
            identity=identity,
            files=files,
            digest=content_digest((file.path, file.sha256) for file in files),
            counts=counts,
            metrics=metrics,
            versions=versions,
            seed=seed,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=round(seconds, 3),
        )
        text = manifest.model_dump_json(indent=1).encode()  # a figure that is not finite becomes null
        manifest = Manifest.model_validate_json(text)
        text = _with_hash(text)
    except ValueError as error:
        raise StageError(f"cannot be published: {_reason(error)}", field=target) from error
    store.delete(f"{target}/manifest.json")
    for file in files:
        _store_whole(store, folder / file.path, f"{target}/{file.path}", file.sha256)
    store.write_bytes(f"{target}/manifest.json", text)
    with contextlib.suppress(StoreError):  # the artifact stands; leftovers only cost space
        store.prune(target, {f"{target}/manifest.json", *(f"{target}/{file.path}" for file in files)})
    return manifest


def fetch(store: Store, manifest: Manifest, cache: Cache) -> Path:
    """A local folder with the artifact's files, each checked against its sha256 before anything reads it.

    Local stores are read in place; others are downloaded once into `cache/<digest>`, where they stay while this process
    lives.

    Raises:
        ArtifactDamaged: A file is missing, truncated or altered; its name is in the error.
    """
    return _complete(store, manifest, cache, store.local_path(manifest.folder) if store.is_local
                     else cache.keep(manifest.digest))  # fmt: skip


@contextlib.contextmanager
def fetched(store: Store, manifest: Manifest, cache: Cache) -> Iterator[Path]:
    """As `fetch`, but a copy may be dropped when the block is left: for those who only look."""
    if store.is_local:
        yield fetch(store, manifest, cache)
        return
    with cache.using(manifest.digest) as folder:
        yield _complete(store, manifest, cache, folder)


def discard(store: Store, run: str, iteration: int, stage: str) -> None:
    """Forget an artifact: without its manifest it does not exist, and the stage runs again."""
    store.delete(manifest_key(run, iteration, stage))


def _store_whole(store: Store, source: Path, key: str, sha256: str) -> None:
    """Upload a file until the store has it to the last byte."""
    for _ in range(_UPLOADS):
        store.upload(source, key)
        if store.holds(key, source, sha256):
            return
    what = f"was not stored whole, {_UPLOADS} times"
    raise StoreError(what, field=store.uri_of(key), fix="check the store, then start the same command again")


def _complete(store: Store, manifest: Manifest, cache: Cache, folder: Path) -> Path:
    """Download what a remote artifact's folder lacks, or holds of another object, then check every file.

    An intact copy says nothing of the store, where the next machine will look: an object that is gone, or has another
    tag than when its content was checked, is downloaded again.
    """
    if not store.is_local:
        tags = {entry.key: f"{entry.bytes} {entry.tag}" for entry in store.entries(manifest.folder)}
        now = {file.path: tags.get(f"{manifest.folder}/{file.path}") for file in manifest.files}
        checked = _read_checked(folder).get(store.uri_of(manifest.folder), {})
        lacking = [
            file
            for file in manifest.files
            if now[file.path] is None
            or now[file.path] != checked.get(file.path)
            or not _intact(folder / file.path, file)
        ]
        if lacking:
            cache.make_room(sum(file.bytes for file in lacking))
        for file in lacking:
            _download(store, manifest, file, cache, folder / file.path)
    for file in manifest.files if store.is_local else lacking:
        path = folder / file.path
        if not path.is_file():
            raise _damaged(store, manifest, file, "is missing")
        if path.stat().st_size != file.bytes:
            raise _damaged(store, manifest, file, f"has {path.stat().st_size} bytes, not {file.bytes}")
        if file_sha256(path) != file.sha256:
            raise _damaged(store, manifest, file, "was altered: its sha256 differs")
    if not store.is_local and lacking:
        known = _read_checked(folder)
        known[store.uri_of(manifest.folder)] = checked | {path: tag for path, tag in now.items() if tag}
        replace_bytes(folder / _CHECKED, json.dumps(known).encode())
    return folder


def _read_checked(folder: Path) -> dict[str, dict[str, str]]:
    """Tags that objects had when their content was checked, by artifact and file; what cannot be read is forgotten."""
    try:
        content = parse_json((folder / _CHECKED).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _download(store: Store, manifest: Manifest, file: FileEntry, cache: Cache, target: Path) -> None:
    """Fetch one file; where the disk is full, older copies make room for it."""
    while True:
        try:
            return store.download(f"{manifest.folder}/{file.path}", target)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, FileNotFoundError):
                raise _damaged(store, manifest, file, "is missing") from error
            full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or not cache.drop_oldest():
                raise


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _with_hash(text: bytes) -> bytes:
    """A manifest's file with the hash of its rest among its versions."""
    content = json.loads(text)
    content["versions"][_ITSELF] = hash_of(content)
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def _is_altered(text: bytes) -> bool:
    """Whether a manifest's file holds a hash, and not that of its rest; those of older releases hold none."""
    try:
        content = parse_json(text)
        versions = dict(content["versions"])
    except (ValueError, KeyError, TypeError):
        return False
    content["versions"] = {name: value for name, value in versions.items() if name != _ITSELF}
    hashes = {name: value for name, value in versions.items() if name == _ITSELF or is_hash(value)}
    return bool(hashes) and hashes != {_ITSELF: hash_of(content)}


def _schema_version(text: bytes) -> int:
    try:
        return int(parse_json(text)["schema_version"])
    except (ValueError, KeyError, TypeError):
        return 0


def _intact(path: Path, file: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == file.bytes and file_sha256(path) == file.sha256


def _damaged(store: Store, manifest: Manifest, file: FileEntry, what: str) -> ArtifactDamaged:
    uri = store.uri_of(f"{manifest.folder}/{file.path}")
    return ArtifactDamaged(what, field=uri, fix="the stage is run again")
