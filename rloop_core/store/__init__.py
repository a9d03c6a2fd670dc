"""Object store, manifests, fingerprints, digests and leases: what makes a run resumable anywhere."""

from rloop_core.store.cache import Cache
from rloop_core.store.canonical import canonical_json, content_digest, file_sha256, fingerprint
from rloop_core.store.checksummed import seal, unseal
from rloop_core.store.delegated_lease import BorrowedLease
from rloop_core.store.lease import Lease
from rloop_core.store.manifest import (
    BASE_ITERATION,
    FileEntry,
    InputEntry,
    Manifest,
    discard,
    fetch,
    fetched,
    iteration_folder,
    manifest_key,
    publish,
    read_manifest,
    read_manifests,
    stage_folder,
)
from rloop_core.store.objects import Entry, Store

__all__ = [
    "BASE_ITERATION",
    "BorrowedLease",
    "Cache",
    "Entry",
    "FileEntry",
    "InputEntry",
    "Lease",
    "Manifest",
    "Store",
    "canonical_json",
    "content_digest",
    "discard",
    "fetch",
    "fetched",
    "file_sha256",
    "fingerprint",
    "iteration_folder",
    "manifest_key",
    "publish",
    "read_manifest",
    "read_manifests",
    "seal",
    "stage_folder",
    "unseal",
]
