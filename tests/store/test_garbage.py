"""Garbage collection deletes what nothing names, and nothing else, whatever state a store is in."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rloop_core.config import Config
from rloop_core.errors import StoreError
from rloop_core.stages.garbage import Garbage, delete_garbage, find_garbage
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.registry import STAGES
from rloop_core.stages.run_record import runs_of, write_run_record
from rloop_core.store import Lease, Manifest, Store, iteration_folder, manifest_key
from tests.conftest import small_config
from tests.store.conftest import published

HOUR = 3600.0
LONG_AGO = 48 * HOUR


def made(store: Store, work: Path, run: str, iteration: int, stage: str, **changes: Any) -> Manifest:
    folder = work / uuid.uuid4().hex
    (folder / "sub").mkdir(parents=True)
    (folder / "weights").write_bytes(os.urandom(20))
    (folder / "sub/rows").write_bytes(os.urandom(10))
    changes |= {"run": run, "iteration": iteration, "stage": stage, "fingerprint": uuid.uuid4().hex * 2}
    return published(store, folder, **changes)


def begun(store: Store, name: str = "run") -> Config:
    """A run whose preflight is done: its records, and its problems."""
    config = small_config(name=name)
    write_run_record(store, config)
    Inputs(config, store).training()
    return config


def aged(store: Store, *keys: str, seconds: float = LONG_AGO) -> None:
    """Make files, or everything, look as old as that."""
    then = time.time() - seconds
    root = store.local_path("")
    for path in [root / key for key in keys] or list(root.rglob("*")):
        os.utime(path, (then, then))


def files(store: Store) -> dict[str, bytes]:
    """Content of all files but leases: collecting takes and releases them."""
    root = store.local_path("")
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "lease.json"]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def keys(found: list[Garbage]) -> set[str]:
    return {item.entry.key for one in found for item in one.items}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the records of one run."""
    root = tmp_path_factory.mktemp("template") / "store"
    begun(Store(str(root)))
    return root


STAGE = st.fixed_dictionaries(
    {
        "iteration": st.integers(-1, 2),
        "stage": st.sampled_from(list(STAGES)),
        "manifest": st.sampled_from(["whole", "whole", "none", "garbage", "newer"]),
        "extra": st.lists(st.sampled_from(["a", "sub/b", "deep/er/c", ".tmp-d", "sub/.tmp-e"]), unique=True),
        "scratch": st.sampled_from([None, None, "own", "older", "later"]),
    }
)
OTHERS = ["report/report.html", "compare-x/a.csv", "notes.txt", "iteration-000/notes", "iteration-0001/explore/a",
          "iteration-000/distil/a", "iteration-00x/rft/a", "base/rft.old/a", f"problems/{0:020x}.json"]  # fmt: skip


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stages=st.lists(STAGE, max_size=5, unique_by=lambda one: (one["iteration"], one["stage"])),
    others=st.lists(st.sampled_from(OTHERS), unique=True, max_size=4),
    young=st.randoms(use_true_random=False),
)
def test_garbage_collection_of_a_random_store(template, tmp_path_factory, stages, others, young):
    root = tmp_path_factory.mktemp("random") / "store"
    shutil.copytree(template, root)
    store, work = Store(str(root)), root.parent / "work"
    garbage: set[str] = set()
    for one in stages:
        folder = f"{iteration_folder('run', one['iteration'])}/{one['stage']}"
        manifest = made(store, work, "run", one["iteration"], one["stage"])
        for name in one["extra"]:
            store.write_bytes(f"{folder}/{name}", b"extra")
        extra = {f"{folder}/{name}" for name in one["extra"]}
        temporary = {key for key in extra if "/.tmp-" in key}
        if one["manifest"] == "none":
            store.delete(f"{folder}/manifest.json")
            extra |= {f"{folder}/weights", f"{folder}/sub/rows"}
        elif one["manifest"] != "whole":
            content = b"{" if one["manifest"] == "garbage" else b'{"schema_version": 99}'
            store.write_bytes(f"{folder}/manifest.json", content)
        garbage |= extra if one["manifest"] in ("whole", "none") else temporary
        if one["scratch"]:
            name = manifest.fingerprint[:16] if one["scratch"] == "own" else "0" * 16
            key = f".scratch-7/{folder}/{name}/out/file"
            store.write_bytes(key, b"scratch")
            if one["manifest"] == "whole" and one["scratch"] != "later":
                garbage.add(key)
    for key in others:
        store.write_bytes(f"run/{key}", b"other")
    aged(store)
    for one in stages:
        if one["scratch"] == "older":
            folder = root / ".scratch-7" / iteration_folder("run", one["iteration"]) / one["stage"]
            for path in [folder, *folder.rglob("*")]:
                os.utime(path, (0, 0))
        elif one["scratch"] == "later":
            manifest_path = root / manifest_key("run", one["iteration"], one["stage"])
            if manifest_path.exists():
                os.utime(manifest_path, (0, 0))
    recent = {key for key in sorted(garbage) if young.random() < 0.2}
    if recent:
        aged(store, *recent, seconds=0.0)
    for key in [key for key in recent if key.startswith(".scratch")]:
        if not any(
            one["scratch"] == "own"
            and key.startswith(f".scratch-7/{iteration_folder('run', one['iteration'])}/{one['stage']}/")
            for one in stages
        ):
            garbage.discard(key)  # written after the artifact: perhaps of one that is being made anew
    before = files(store)

    found = find_garbage(store, [], HOUR)
    assert files(store) == before, "looking changes nothing"
    done = delete_garbage(store, found, HOUR)
    after = files(store)
    assert before.keys() - after.keys() == garbage - recent
    assert all(before[key] == content for key, content in after.items())
    assert sum(one.bytes for one in done) == sum(len(before[key]) for key in garbage - recent)
    assert keys(find_garbage(store, [], HOUR)) == set()
    assert keys(delete_garbage(store, find_garbage(store, [], HOUR), HOUR)) == set()
    assert files(store) == after


def test_every_artifact_and_record_of_a_run_survives_the_shortest_guard(local, tmp_path):
    begun(local)
    for iteration in (-1, 0, 1):
        for stage in STAGES:
            made(local, tmp_path / "work", "run", iteration, stage)
    before = files(local)
    assert keys(delete_garbage(local, find_garbage(local, [], 0.0), 0.0)) == set()
    assert files(local) == before


def test_a_running_run_is_skipped_and_a_dead_one_is_not(local, tmp_path):
    for name in ("run", "other"):
        begun(local, name)
        local.write_bytes(f"{name}/iteration-000/rft/half", b"x")
    aged(local)
    with Lease(local, "run"):
        found = find_garbage(local, [], HOUR)
        assert [one.run for one in found if one.skipped] == ["run"]
        assert "working on it" in str(found[[one.run for one in found].index("run")].skipped)
        assert keys(delete_garbage(local, found, HOUR)) == {"other/iteration-000/rft/half"}
    assert local.exists("run/iteration-000/rft/half")
    dead = {"token": "t", "host": "node7", "machine": "node7/x", "pid": 1, "started": 1.0, "heartbeats": 0}
    local.write_bytes("run/lease.json", json.dumps(dead).encode())
    local.write_bytes("run/lease-takeover-older-0", b"{}")
    aged(local)
    found = find_garbage(local, [], HOUR, patience=2.0)
    done = delete_garbage(local, found, HOUR, patience=2.0)
    assert keys(done) == {"run/iteration-000/rft/half", "run/lease-takeover-older-0"}
    assert local.list("run/iteration-000") == []
    assert Lease(local, "run").living_holder() is None


def test_a_run_that_starts_after_the_search_is_skipped(local):
    begun(local)
    local.write_bytes("run/iteration-000/rft/half", b"x")
    aged(local)
    found = find_garbage(local, [], HOUR)
    with Lease(local, "run"):
        (done,) = delete_garbage(local, found, HOUR)
    assert "being written by" in str(done.skipped)
    assert local.exists("run/iteration-000/rft/half")


def test_artifacts_published_after_the_search_stay(local, tmp_path):
    """Files that no manifest named when they were found, and one names now."""
    begun(local)
    manifest = made(local, tmp_path / "work", "run", 0, "rft")
    text = local.read_bytes("run/iteration-000/rft/manifest.json")
    local.delete("run/iteration-000/rft/manifest.json")
    aged(local)
    found = find_garbage(local, [], HOUR)
    assert len(keys(found)) == 2
    local.write_bytes("run/iteration-000/rft/manifest.json", text)
    assert keys(delete_garbage(local, found, HOUR)) == set()
    assert {f"{manifest.folder}/{file.path}" for file in manifest.files} <= set(local.list("run"))


def test_a_concurrent_publisher_loses_no_file(local, tmp_path):
    begun(local)
    stop = threading.Event()
    artifacts: list[Manifest] = []

    def work() -> None:
        while not stop.is_set():
            artifacts.append(made(local, tmp_path / "work", "run", len(artifacts) % 3, "explore"))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(8):
            delete_garbage(local, find_garbage(local, [], HOUR), HOUR)
    finally:
        stop.set()
        worker.join()
    for manifest in {one.iteration: one for one in artifacts}.values():
        for file in manifest.files:
            assert len(local.read_bytes(f"{manifest.folder}/{file.path}")) == file.bytes


def test_only_named_runs_are_searched(local):
    for name in ("run", "other"):
        begun(local, name)
        local.write_bytes(f"{name}/iteration-000/rft/half", b"x")
    local.write_bytes("no-run/iteration-000/rft/half", b"x")
    aged(local)
    assert runs_of(local) == ["other", "run"]
    assert keys(find_garbage(local, ["other"], HOUR)) == {"other/iteration-000/rft/half"}
    assert len(keys(find_garbage(local, [], HOUR))) == 2
    with pytest.raises(StoreError, match="no run 'none'"):
        find_garbage(local, ["none"], HOUR)


def test_a_file_dated_in_the_future_counts_as_new(local):
    """By a machine whose clock was wrong."""
    begun(local)
    local.write_bytes("run/iteration-000/rft/half", b"x")
    aged(local, "run/iteration-000/rft/half", seconds=-5 * HOUR)
    found = find_garbage(local, [], HOUR)
    assert keys(found) == set()
    assert sum(one.younger for one in found) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("server", "dated_long_ago"), [("s3_server", 1), pytest.param("swift_here", 0, marks=pytest.mark.long)]
)
def test_unfinished_uploads_and_orphans_on_s3_are_deleted(server, dated_long_ago, request, tmp_path):
    import boto3

    given = request.getfixturevalue(server)
    place = given.uri if server == "swift_here" else given
    bucket = place.removeprefix("s3://")
    store, client = Store(f"{place}/{uuid.uuid4().hex}/deep"), boto3.Session().client("s3")
    begun(store)
    manifest = made(store, tmp_path / "work", "run", 0, "rft")
    for number in range(12):
        store.write_bytes(f"run/iteration-000/rft/old-{number}", b"x" * 10)
    root = store.uri.removeprefix(f"{place}/")
    upload = client.create_multipart_upload(Bucket=bucket, Key=f"{root}/run/iteration-000/rft/weights")
    part = {key: upload[key] for key in ("Bucket", "Key", "UploadId")}
    client.upload_part(**part, PartNumber=1, Body=b"y" * 100)
    client.create_multipart_upload(Bucket=bucket, Key=f"{root}2/run/iteration-000/rft/weights")
    assert sum(len(one.items) for one in find_garbage(store, [], HOUR)) == dated_long_ago
    time.sleep(1.1)  # a server dates objects by whole seconds
    found = find_garbage(store, [], 0.0)
    assert sum(one.bytes for one in found) == 120
    delete_garbage(store, found, 0.0)
    assert {key for key in store.list("run") if key.startswith("run/iteration")} == {
        manifest_key("run", 0, "rft"), *(f"{manifest.folder}/{file.path}" for file in manifest.files)
    }  # fmt: skip
    left = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [one["Key"] for one in left if root in one["Key"]] == [f"{root}2/run/iteration-000/rft/weights"]
    assert keys(find_garbage(store, [], 0.0)) == set()
