"""Object store, manifests, fingerprints, digests and leases: the parts that make a run resumable on any machine."""

from rloop_core.store.cache import Cache
from rloop_core.store.canonical import (
    canonical_json,
    content_digest,
    dump_checksummed,
    file_sha256,
    fingerprint,
    load_checksummed,
)
from rloop_core.store.lease import Lease
from rloop_core.store.manifest import (
    BASE_ITERATION,
    InputEntry,
    Manifest,
    discard,
    ensure_unchanged,
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
    "Cache",
    "Entry",
    "InputEntry",
    "Lease",
    "Manifest",
    "Store",
    "canonical_json",
    "content_digest",
    "discard",
    "dump_checksummed",
    "ensure_unchanged",
    "fetch",
    "fetched",
    "file_sha256",
    "fingerprint",
    "iteration_folder",
    "load_checksummed",
    "manifest_key",
    "publish",
    "read_manifest",
    "read_manifests",
    "stage_folder",
]
