"""Problem sets as the run first read them, kept in the store: later stages, on any machine, see the same problems."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rloop_core.config import ProblemSource
from rloop_core.errors import ArtifactDamaged
from rloop_core.problems import Problem, ProblemSet, Repeated, Variant, load_problems, problem_id
from rloop_core.store import Store, content_digest, dump_checksummed, file_sha256, fingerprint, load_checksummed


def ensure_problems(store: Store, run: str, source: ProblemSource) -> tuple[str, str]:
    """Key and digest of a stored problem set; loads and stores it when the run meets it for the first time.

    A changed file, generator setting or revision is another set under another key.

    Raises:
        ProblemsError: The set cannot be read or trusted.
    """
    key = f"{run}/problems/{source_key(source)}.json"
    text = store.find_bytes(key)
    if text is not None:
        try:
            digest = str(load_checksummed(text)["digest"])
            _checked(text, store.uri_of(key), digest)
            return key, digest
        except (ValueError, KeyError, TypeError, ArtifactDamaged) as error:
            why = error.what if isinstance(error, ArtifactDamaged) else error
            store.tell(f"{store.uri_of(key)}: {why}; {source.label} is read again")
            store.delete(key)
    problem_set = load_problems(source)
    store.write_bytes(key, dump_problems(problem_set))
    return key, problem_set.digest


def read_problems(store: Store, key: str, digest: str) -> ProblemSet:
    """A stored problem set, checked against its digest.

    Raises:
        ArtifactDamaged: It is gone or was altered.
    """
    text = store.find_bytes(key)
    if text is None:
        raise ArtifactDamaged("is gone", field=store.uri_of(key), fix="start the run again")
    return _checked(text, store.uri_of(key), digest)


def _checked(text: bytes, uri: str, digest: str) -> ProblemSet:
    try:
        content = load_checksummed(text)
        problems = tuple(Problem(*row) for row in content["problems"])
        problem_set = ProblemSet(
            content["name"],
            problems,
            content["ledger"],
            tuple(content.get("warnings", ())),
            tuple(_repeated(one) for one in content.get("conflicts", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactDamaged(f"cannot be read: {error}", field=uri, fix="start the run again") from error
    # The digest covers ids and golds; an id covers its text.
    if problem_set.digest != digest or any(problem_id(one.problem) != one.id for one in problems):
        raise ArtifactDamaged("was altered: its digest differs", field=uri, fix="start the run again")
    return problem_set


def dump_problems(problem_set: ProblemSet) -> bytes:
    """What `read_problems` reads."""
    rows = [[problem.id, problem.problem, problem.gold, problem.source] for problem in problem_set]
    content = {
        "name": problem_set.name,
        "digest": problem_set.digest,
        "ledger": problem_set.ledger,
        "warnings": problem_set.warnings,
        "conflicts": [asdict(one) for one in problem_set.conflicts],
        "problems": rows,
    }
    return dump_checksummed(content)


def _repeated(content: dict[str, Any]) -> Repeated:
    return Repeated(content["id"], content["problem"], tuple(Variant(**one) for one in content["variants"]))


def source_key(source: ProblemSource) -> str:
    """Under what a set is stored: everything that decides what its source holds, as far as it can be seen from here."""
    identity = source.identity()
    identity.pop("name")
    if source.source.startswith("reasoning_gym:"):
        identity["generator"] = version("reasoning-gym")
    elif Path(source.source).is_file():
        identity["source"] = content_digest([("file", file_sha256(source.source))])
    return fingerprint(identity)[:20]
