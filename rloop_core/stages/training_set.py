"""The training set against the evaluation sets: compared once, and kept in the store under what was compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rloop_core.config import Config, ProblemSource
from rloop_core.errors import ArtifactDamaged
from rloop_core.problems.decontamination import (
    DECONTAMINATION_VERSION,
    Decontamination,
    EvaluationSet,
    Rules,
    decontaminate,
)
from rloop_core.problems.registry import PROCEDURAL_PREFIX
from rloop_core.stages.job import InputRef
from rloop_core.stages.problem_store import dump_problems, read_problems
from rloop_core.store import Store, dump_checksummed, fingerprint, load_checksummed


def ensure_decontamination(
    store: Store, config: Config, training: InputRef, sets: Sequence[tuple[ProblemSource, InputRef]]
) -> Decontamination:
    """The ledger of a stored training set against stored evaluation sets; computed when it is not in the store.

    Args:
        store: The object store.
        config: The run's config.
        training: The training set as it was read.
        sets: The evaluation sets, each with its source.
    """
    rules = Rules(config.decontaminate.ngram, config.decontaminate.containment)
    generated = [_generated(config.problems) and _generated(source) for source, _ in sets]
    compared = {
        "version": DECONTAMINATION_VERSION,
        "rules": dataclasses.asdict(rules),
        "training": training.digest,
        "sets": [[source.label, ref.digest, same] for (source, ref), same in zip(sets, generated, strict=True)],
    }
    key = f"{config.name}/problems/decontamination-{fingerprint(compared)[:20]}.json"
    if store.exists(key):
        try:
            return Decontamination.from_dict(load_checksummed(store.read_bytes(key)))
        except (ValueError, KeyError, TypeError) as error:
            store.tell(f"{store.uri_of(key)}: cannot be read ({error}); the sets are compared again")
            store.delete(key)
    found = decontaminate(
        read_problems(store, training.location, training.digest),
        [
            EvaluationSet(source.label, read_problems(store, ref.location, ref.digest), equal_only)
            for (source, ref), equal_only in zip(sets, generated, strict=True)
        ],
        rules,
    )
    store.write_bytes(key, dump_checksummed(found.to_dict()))
    return found


def ensure_clean(store: Store, config: Config, training: InputRef, found: Decontamination) -> InputRef:
    """The training set without what evaluation sets hold; the same set where they hold none of it.

    Raises:
        ProblemsError: Nothing is left.
    """
    if not found.contaminated:
        return training
    left_out = {"training": training.digest, "without": sorted(found.contaminated)}
    key = f"{config.name}/problems/clean-{fingerprint(left_out)[:20]}.json"
    digest = ""
    if store.exists(key):
        try:
            digest = str(load_checksummed(store.read_bytes(key))["digest"])
            read_problems(store, key, digest)
        except (ValueError, KeyError, TypeError, ArtifactDamaged) as error:
            store.tell(f"{store.uri_of(key)}: cannot be read ({error}); it is made again")
            digest = ""
    if not digest:
        clean = found.clean(read_problems(store, training.location, training.digest))
        store.write_bytes(key, dump_problems(clean))
        digest = clean.digest
    return dataclasses.replace(training, uri=store.uri_of(key), digest=digest, location=key)


def _generated(source: ProblemSource) -> bool:
    return source.source.startswith(PROCEDURAL_PREFIX)
