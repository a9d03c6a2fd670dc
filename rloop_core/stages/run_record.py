"""The records of a run: `<run>/run.json` has its config and age, `<run>/data.json` the problem sets that it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from rloop_core import __version__
from rloop_core.config import Config, make_config
from rloop_core.errors import ArtifactDamaged, ObjectTooLarge, StoreError
from rloop_core.store import Store, dump_checksummed, load_checksummed

SCHEMA_VERSION = 1


def write_run_record(store: Store, config: Config) -> None:
    """Write the run's record, or update it; its creation time is kept."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run": config.name,
        "kind": "rloop",
        "iterations": config.iterations,
        "config": config.model_dump(mode="json"),
        "rloop": __version__,
        "created_at": now,
        "updated_at": now,
    }
    old = _read(store, config.name)
    if old == {}:
        store.note(f"{store.uri_of(_key(config.name))}: cannot be read; it is written anew")
    if old:
        content["created_at"] = old.get("created_at", now)
        if {**old, "updated_at": now} == content:
            return
    store.write_bytes(_key(config.name), dump_checksummed(content, indent=1))


def read_run_config(store: Store, run: str) -> Config:
    """Return the config that a run was last started with.

    Raises:
        StoreError: The store holds no such run.
    """
    content = _read(store, run)
    if content is None:
        what = f"there is no run {run!r} here; it holds {', '.join(runs_of(store)) or 'none'}"
        raise StoreError(what, field=store.uri, fix="check RUN and --store")
    config = content.get("config")
    if not isinstance(config, dict):
        fix = "start the run again with its config file"
        raise StoreError("is not a run record", field=store.uri_of(_key(run)), fix=fix)
    return make_config(_in_todays_fields(Config, config))


def _in_todays_fields(section: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded section, perhaps of an earlier release, without the fields that this one does not have."""
    kept = {name: value for name, value in data.items() if name in section.model_fields}
    for name, value in kept.items():
        kind = section.model_fields[name].annotation
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            kept[name] = _in_todays_fields(kind, value)
    return kept


def runs_of(store: Store) -> list[str]:
    """Return the names of the runs that a store holds.

    Raises:
        StoreError: It cannot be read.
    """
    return [name for name in store.folders() if not name.startswith(".") and store.exists(_key(name))]


@dataclass(frozen=True)
class SetRecord:
    """One problem set of a run."""

    use: str
    """`training` or `evaluation`."""
    label: str
    """Its name."""
    digest: str
    """As among the inputs of the stages that read it."""
    problems: int
    """Number of problems in use."""
    ledger: dict[str, int]
    """Rows read, and why rows were left out."""
    golds_refused: list[str]
    """Ids of problems whose gold does not verify against itself: no completion is ever correct."""
    warnings: list[str]
    """The loader's."""


@dataclass(frozen=True)
class DataRecord:
    """The problem sets of a run: training first, then evaluation in the config's order."""

    sets: tuple[SetRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as in the file."""
        return {"problem_sets": [asdict(record) for record in self.sets]}

    def notes(self) -> list[str]:
        """Return the loaders' warnings, then the sentence about problems in training and evaluation."""
        warnings = [f"{record.label}: {warning}" for record in self.sets for warning in record.warnings]
        return [*warnings, *filter(None, [self.sentence()])]

    @property
    def left_out(self) -> int:
        """Number of training problems that were left out because an evaluation set has them too."""
        return sum(record.ledger.get("contaminated_dropped", 0) for record in self.sets if record.use == "training")

    def sentence(self) -> str | None:
        """Return a sentence about the training problems that were left out; None if there are none."""
        if not self.left_out:
            return None
        of = self.left_out + sum(record.problems for record in self.sets if record.use == "training")
        return f"{self.left_out:,} of {of:,} training problems are also in an evaluation set, and are left out"


def write_data_record(store: Store, run: str, problem_sets: Sequence[Mapping[str, Any]]) -> None:
    """Write the record of problem sets, each with the fields of `SetRecord`."""
    content = {"schema_version": SCHEMA_VERSION, "problem_sets": problem_sets}
    store.write_bytes(f"{run}/data.json", dump_checksummed(content, indent=1))


def read_data_record(store: Store, run: str) -> DataRecord | None:
    """Return the record; None if preflight has not written one.

    Raises:
        ArtifactDamaged: It is there and cannot be read.
    """
    key = f"{run}/data.json"
    try:
        text = store.find_bytes(key)
        if text is None:
            return None
        return DataRecord(tuple(SetRecord(**record) for record in load_checksummed(text)["problem_sets"]))
    except (ObjectTooLarge, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactDamaged(f"cannot be read: {error}", field=store.uri_of(key), fix="start the run again") from error


def _key(run: str) -> str:
    return f"{run}/run.json"


def _read(store: Store, run: str) -> dict[str, Any] | None:
    """Return the record; None if there is none, and {} if it is damaged."""
    try:
        text = store.find_bytes(_key(run))
        return None if text is None else load_checksummed(text)
    except (ObjectTooLarge, ValueError):
        return {}
