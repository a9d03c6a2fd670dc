"""Manifests: an artifact exists once its manifest does, and is what the manifest says or is not used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rloop_core.errors import ArtifactDamaged, StoreError
from rloop_core.store.canonical import content_digest, file_sha256
from rloop_core.store.objects import Store

SCHEMA_VERSION = 1
BASE_ITERATION = -1
"""Iteration number under which the evaluation of theta_0 is kept (folder `base`)."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Record):
    """One file of an artifact; `path` is relative to the manifest's folder."""

    path: str
    bytes: int
    sha256: str


class InputEntry(_Record):
    """One artifact (or outside model) that a stage read."""

    uri: str
    digest: str


class Manifest(_Record):
    """The contract of design.md section 6; its `digest` covers the files' contents alone."""

    schema_version: int = SCHEMA_VERSION
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
    seconds: float

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
        ArtifactDamaged: The manifest is there but is not one.
    """
    key = manifest_key(run, iteration, stage)
    if not store.exists(key):
        return None
    try:
        manifest = Manifest.model_validate_json(store.read_bytes(key))
    except ValidationError as error:
        raise ArtifactDamaged(
            f"is not a manifest: {error.errors()[0]['msg']}", field=store.uri_of(key), fix="the stage is run again"
        ) from error
    named = (manifest.run, manifest.iteration, manifest.stage)
    if named != (run, iteration, stage):
        raise ArtifactDamaged(f"belongs to {named}", field=store.uri_of(key), fix="the stage is run again")
    return manifest


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
) -> Manifest:
    """Upload every file of a local folder, then the manifest with a single PUT, last.

    An older manifest of the stage is removed first, so that its files are never taken for the new ones.

    Raises:
        StoreError: The store refuses; nothing is published then.
    """
    target = stage_folder(run, iteration, stage)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = [(path.relative_to(folder).as_posix(), path) for path in paths]
    files = tuple(
        FileEntry(path=name, bytes=path.stat().st_size, sha256=file_sha256(path)) for name, path in entries
    )
    store.delete(f"{target}/manifest.json")
    for name, path in entries:
        store.upload(path, f"{target}/{name}")
    for file in files:
        if store.size(f"{target}/{file.path}") != file.bytes:
            raise StoreError("was not stored whole", field=store.uri_of(f"{target}/{file.path}"), fix="run again")
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
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, allow_nan=False)
    store.write_bytes(f"{target}/manifest.json", text.encode())
    return manifest


def fetch(store: Store, manifest: Manifest, cache: Path) -> Path:
    """A local folder with the artifact's files, each checked against its sha256 before anything reads it.

    Local stores are read in place; others are downloaded once into `cache/<digest>`.

    Raises:
        ArtifactDamaged: A file is missing, truncated or altered; its name is in the error.
    """
    folder = store.local_path(manifest.folder) if store.is_local else cache / manifest.digest
    for file in manifest.files:
        path = folder / file.path
        if not store.is_local and not _intact(path, file):
            try:
                store.download(f"{manifest.folder}/{file.path}", path)
            except StoreError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise _damaged(store, manifest, file, "is missing") from error
                raise
        if not path.is_file():
            raise _damaged(store, manifest, file, "is missing")
        if path.stat().st_size != file.bytes:
            raise _damaged(store, manifest, file, f"has {path.stat().st_size} bytes, not {file.bytes}")
        if file_sha256(path) != file.sha256:
            raise _damaged(store, manifest, file, "was altered: its sha256 differs")
    return folder


def discard(store: Store, run: str, iteration: int, stage: str) -> None:
    """Forget an artifact: without its manifest it does not exist, and the stage runs again."""
    store.delete(manifest_key(run, iteration, stage))


def _intact(path: Path, file: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == file.bytes and file_sha256(path) == file.sha256


def _damaged(store: Store, manifest: Manifest, file: FileEntry, what: str) -> ArtifactDamaged:
    uri = store.uri_of(f"{manifest.folder}/{file.path}")
    return ArtifactDamaged(what, field=uri, fix="the stage is run again")
