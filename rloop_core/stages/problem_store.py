"""Problem sets in the store as the run first read them: later stages, on any machine, see the same problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from importlib.metadata import version
from pathlib import Path

from rloop_core.config import ProblemSource
from rloop_core.errors import ArtifactDamaged, ObjectTooLarge, ProblemsError, RLoopError
from rloop_core.problems import Problem, ProblemSet, exact_id, load_problems, problem_id
from rloop_core.problems.registry import PROCEDURAL_PREFIX
from rloop_core.stages.job import InputRef
from rloop_core.store import Store, content_digest, dump_checksummed, file_sha256, fingerprint, load_checksummed
from rloop_core.store.objects import MOST_BYTES

MOST_SET_BYTES = 1 << 30
"""Bytes of the largest problem set."""


class Unwritten(Store):
    """A view of a store that changes nothing: what is written or deleted here is so in memory alone."""

    def __init__(self, store: Store) -> None:
        vars(self).update(vars(store))
        self.note = lambda line: None
        self._written: dict[str, bytes | None] = {}

    def find_bytes(self, key: str, most: int = MOST_BYTES) -> bytes | None:
        """Return an object's content; None if there is none."""
        return self._written[key] if key in self._written else super().find_bytes(key, most)

    def write_bytes(self, key: str, content: bytes) -> None:
        """Keep an object in memory."""
        self._written[key] = content

    def delete(self, key: str) -> None:
        """Hide an object."""
        self._written[key] = None


def ensure_problems(store: Store, run: str, source: ProblemSource, *, offline: bool = False) -> tuple[str, ProblemSet]:
    """Return a problem set and its key in the store; load and store it if the run meets it for the first time.

    A changed file, generator setting or revision is another set under another key.

    Raises:
        ProblemsError: The set cannot be read or trusted, or, with `offline`, would have to be downloaded.
    """
    key = f"{run}/problems/{source_key(source)}.json"

    def load() -> ProblemSet:
        if offline and not _is_generated(source) and not Path(source.source).is_file():
            raise ProblemsError("is neither in the store nor in a file here", field=source.label, fix="start the run")
        return load_problems(source)

    return key, _ensure_set(store, key, load)


def source_key(source: ProblemSource) -> str:
    """Hash everything that determines what a source holds, as far as this machine can tell."""
    identity = source.identity()
    identity.pop("name")
    if _is_generated(source):
        identity["generator"] = version("reasoning-gym")
    elif Path(source.source).is_file():
        identity["source"] = content_digest([("file", file_sha256(source.source))])
    return fingerprint(identity)[:20]


def read_problems(store: Store, key: str, digest: str) -> ProblemSet:
    """Read a stored problem set and check it against its digest.

    Raises:
        ArtifactDamaged: It is gone or was altered.
    """
    try:
        text = store.find_bytes(key, MOST_SET_BYTES)
    except ObjectTooLarge as error:
        raise ArtifactDamaged(error.what, field=error.field, fix="start the run again") from error
    if text is None:
        raise ArtifactDamaged("is gone", field=store.uri_of(key), fix="start the run again")
    return _parse_set(text, store.uri_of(key), digest)


def dump_problems(problem_set: ProblemSet) -> bytes:
    """Return the content of the file that `read_problems` reads."""
    rows = [[problem.id, problem.problem, problem.gold, problem.source] for problem in problem_set]
    content = {
        "name": problem_set.name,
        "digest": problem_set.digest,
        "ledger": problem_set.ledger,
        "warnings": problem_set.warnings,
        "problems": rows,
    }
    return dump_checksummed(content)


def ensure_without(store: Store, run: str, training: InputRef, evaluated: Set[str]) -> InputRef:
    """Return a stored training set without the problems of evaluation sets, `evaluated`; as it is if it has none.

    Raises:
        ProblemsError: Nothing is left.
    """
    problems = read_problems(store, training.location, training.digest)
    left_out = sorted(problem.id for problem in problems if problem.id in evaluated)
    if not left_out:
        return training
    key = f"{run}/problems/clean-{fingerprint({'training': training.digest, 'without': left_out})[:20]}.json"
    digest = _ensure_set(store, key, lambda: problems.without(evaluated)).digest
    return dataclasses.replace(training, uri=store.uri_of(key), digest=digest, location=key)


def _ensure_set(store: Store, key: str, load: Callable[[], ProblemSet]) -> ProblemSet:
    """Return the problem set that is stored under a key; load and store it if it is not there, or damaged."""
    try:
        text = store.find_bytes(key, MOST_SET_BYTES)
        if text is not None:
            return _parse_set(text, store.uri_of(key), str(load_checksummed(text)["digest"]))
    except (ValueError, KeyError, TypeError, ArtifactDamaged, ObjectTooLarge) as error:
        why = error.what if isinstance(error, RLoopError) else f"cannot be read: {error}"
        store.note(f"{store.uri_of(key)}: {why}; it is made again")
        store.delete(key)
    problem_set = load()
    store.write_bytes(key, dump_problems(problem_set))
    return problem_set


def _parse_set(text: bytes, uri: str, digest: str) -> ProblemSet:
    try:
        content = load_checksummed(text)
        problem_set = ProblemSet(
            content["name"],
            tuple(Problem(*row) for row in content["problems"]),
            content["ledger"],
            tuple(content.get("warnings", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactDamaged(f"cannot be read: {error}", field=uri, fix="start the run again") from error
    # The digest covers ids and golds; an id covers its text.
    texts = ((problem.id, problem.problem) for problem in problem_set)
    if problem_set.digest != digest or any(key not in (problem_id(text), exact_id(text)) for key, text in texts):
        raise ArtifactDamaged("was altered: its digest differs", field=uri, fix="start the run again")
    return problem_set


def _is_generated(source: ProblemSource) -> bool:
    return source.source.startswith(PROCEDURAL_PREFIX)
