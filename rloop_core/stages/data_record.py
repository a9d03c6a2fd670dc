"""`<run>/data.json`: what preflight found out about the problems that a run trains and is evaluated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import ArtifactDamaged
from rloop_core.problems.decontamination import Decontamination
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.problem_store import read_problems
from rloop_core.store import Store, dump_checksummed, load_checksummed

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class SetRecord:
    """One problem set of a run.

    Attributes:
        use: `training`, or `evaluation`.
        label: Its name.
        digest: As the stages that read it have it among their inputs.
        problems: Problems in use.
        ledger: Rows read, and where those went that are not in use.
        golds_refused: Ids of problems whose gold does not verify against itself: no completion is ever correct.
        warnings: What the loader has to say.
    """

    use: str
    label: str
    digest: str
    problems: int
    ledger: dict[str, int]
    golds_refused: list[str]
    warnings: list[str]


@dataclass(frozen=True)
class DataRecord:
    """The problem sets of a run, and what training and evaluation share.

    Attributes:
        sets: Training first, then evaluation in the config's order.
        mode: `decontaminate.mode` of the config.
        decontamination: The ledger; None when nothing was compared.
    """

    sets: tuple[SetRecord, ...]
    mode: str
    decontamination: Decontamination | None

    def known(self, label: str) -> frozenset[str]:
        """Problems of an evaluation set that the policy was trained on; none when they were dropped from training."""
        if self.mode == "drop" or self.decontamination is None:
            return frozenset()
        return self.decontamination.known(label)

    def notes(self) -> list[str]:
        """What to tell whoever starts the run: the loaders' warnings, then contamination."""
        found = self.sentence()
        warnings = [f"{one.label}: {warning}" for one in self.sets for warning in one.warnings]
        return [*warnings, found] if found else warnings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the file."""
        found = self.decontamination
        return {
            "problem_sets": [asdict(one) for one in self.sets],
            "mode": self.mode,
            "decontamination": found.to_dict() if found else None,
        }

    def counts(self) -> dict[str, int]:
        """Contaminated problems and near misses; empty when nothing was compared."""
        found = self.decontamination
        if found is None:
            return {}
        return {"contaminated problems": len(found.contaminated), "near misses of contamination": found.near_misses}

    def sentence(self) -> str | None:
        """What a reader must know about contamination, None when there is none or nobody looked."""
        if self.decontamination is None or not self.decontamination.contaminated:
            return None
        then = "dropped" if self.mode == "drop" else "kept, and evaluated with and without"
        return f"{self.decontamination.sentence()}: {then}"


def write_data_record(
    store: Store,
    config: Config,
    inputs: Inputs,
    golds_refused: Mapping[str, Sequence[str]],
    training_warnings: Sequence[str] = (),
) -> DataRecord:
    """Write the record anew, whole.

    Args:
        store: The object store.
        config: The run's config.
        inputs: Resolves its problem sets.
        golds_refused: Problem ids by role.
        training_warnings: What the thorough check has to say about the training set, beside its loader.
    """
    labels = [("training", config.problems.label), *(("evaluation", one.label) for one in config.evaluate.sets)]
    sets = []
    for (use, label), ref in zip(labels, (inputs.training(), *inputs.evaluation()), strict=True):
        problems = read_problems(store, ref.location, ref.digest)
        refused = list(golds_refused.get(ref.role, ()))
        warnings = [*problems.warnings, *(training_warnings if use == "training" else ())]
        sets.append(SetRecord(use, label, ref.digest, len(problems), problems.ledger, refused, warnings))
    record = DataRecord(tuple(sets), config.decontaminate.mode, inputs.decontamination())
    content = {"schema_version": SCHEMA_VERSION, **record.to_dict()}
    store.write_bytes(_key(config.name), dump_checksummed(content, indent=1))
    return record


def read_data_record(store: Store, run: str) -> DataRecord | None:
    """The record, None when preflight has not written any.

    Raises:
        ArtifactDamaged: It is there and cannot be read.
    """
    text = store.find_bytes(_key(run))
    if text is None:
        return None
    try:
        content = load_checksummed(text)
        found = content["decontamination"]
        sets = tuple(SetRecord(**one) for one in content["problem_sets"])
        return DataRecord(sets, str(content["mode"]), Decontamination.from_dict(found) if found else None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"cannot be read: {error}"
        raise ArtifactDamaged(what, field=store.uri_of(_key(run)), fix="start the run again") from error


def _key(run: str) -> str:
    return f"{run}/data.json"
