"""Plant wrongs one at a time in a copy of the project, and see which tests notice: `make wrongs`.

Each wrong is tried with the quick tests, and if they miss it with the rest of `make test`. The exit code is 1 if a
wrong is missed, or if a test fails without one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil

from tests.wrongs.catalogue import WRONGS, Wrong

ROOT = Path(__file__).parents[2]
TIERS: dict[str, list[str]] = {
    "quick": ["-n", "2", "-m", "not long and not process and not vllm"],
    "test": ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not long and (process or vllm)"],
}
"""Arguments of pytest, in the order in which the tiers are tried; no test is in two of them."""
_ALWAYS = ["-x", "-q", "-p", "no:cacheprovider"]
_NO_TESTS = 5  # of pytest's exit codes: a package may have none in a tier
# The catalogue's own test would notice every wrong: its old text is gone. The documentation's notices every default.
_LEFT_OUT = ("wrongs", "test_docs.py")
_PACKAGES = ("rloop_core", "tasks", "flows", "tests")


@dataclass(frozen=True)
class Row:
    """The result of a wrong."""

    name: str
    """The wrong's name."""
    tier: str
    """The last tier played."""
    failed: str | None
    """The first test that failed; None if all passed."""
    seconds: float
    """Duration of all tiers played."""

    def __str__(self) -> str:
        by, failed = (self.tier, self.failed) if self.failed else ("NOT CAUGHT", "")
        return f"{self.name:32} {by:10} {self.seconds:5.0f} s  {failed}".rstrip()


def main() -> int:
    """Plant and test each wrong, print its row, and end with the table; return the exit code."""
    options = _arguments()
    wrongs = [wrong for wrong in WRONGS if not options.only or wrong.name in options.only]
    if options.list:
        for wrong in wrongs:
            print(f"{wrong.name:32} {wrong.file:44} {wrong.why}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    tiers = list(TIERS)[: list(TIERS).index(options.tier) + 1]
    folder = Path(tempfile.mkdtemp(prefix="wrongs-"))  # short, since sockets are created below it
    rows: dict[str, Row] = {}
    try:
        if not _try_all(folder, wrongs, tiers, options.jobs, rows):
            return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    finally:
        _end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        _print_table(wrongs, tiers, rows)
    return 0 if all(row.failed for row in rows.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.wrongs", description=__doc__)
    names = [wrong.name for wrong in WRONGS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="only these wrongs")
    parser.add_argument("--list", action="store_true", help="list the wrongs, and plant none")
    parser.add_argument("--tier", choices=list(TIERS), default=list(TIERS)[-1], help="the last tier to try (all)")
    parser.add_argument("--jobs", type=int, default=1, help="wrongs tried side by side (1)")
    return parser.parse_args()


def _try_all(folder: Path, wrongs: Sequence[Wrong], tiers: Sequence[str], jobs: int, rows: dict[str, Row]) -> bool:
    """Fill `rows`; return False if a tier fails without a wrong."""
    plain = folder / "0"
    _copy_project(plain)
    print(f"{len(wrongs)} wrongs; the tests run on {_imported(plain)}", flush=True)
    left = list(wrongs)
    for tier in tiers:
        if not left:
            break
        without = _play(plain, None, tier, 0.0)
        print(f"{without.name:32} {tier:10} {without.seconds:5.0f} s  {without.failed or 'passes'}", flush=True)
        if without.failed:
            return False
        for row in _try_each(plain, left, tier, jobs, rows):
            rows[row.name] = row
            print(row if row.failed or tier == tiers[-1] else f"{row}, by {tier}", flush=True)
        left = [wrong for wrong in left if not rows[wrong.name].failed]
    return True


def _try_each(plain: Path, wrongs: Sequence[Wrong], tier: str, jobs: int, rows: dict[str, Row]) -> Iterator[Row]:
    """Yield rows as they are known."""

    def attempt(number: int, wrong: Wrong) -> Row:
        home = plain.with_name(str(number))
        shutil.copytree(plain / "project", home / "project", ignore=shutil.ignore_patterns(".rloop", ".hypothesis"))
        _link_beside(home)
        _plant(wrong, home / "project")
        before = rows[wrong.name].seconds if wrong.name in rows else 0.0
        row = _play(home, wrong, tier, before)
        shutil.rmtree(home, ignore_errors=True)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(attempt, number, wrong) for number, wrong in enumerate(wrongs, 1)]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _end_processes(plain.parent)
            raise


def _copy_project(home: Path) -> None:
    """Copy the tracked files as they are now, and link the folders beside the project."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            target = home / "project" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    _link_beside(home)


def _link_beside(home: Path) -> None:
    """Link the folder of data beside the project."""
    if (ROOT.parent / "shared").is_dir():
        (home / "shared").symlink_to((ROOT.parent / "shared").resolve())


def _plant(wrong: Wrong, project: Path) -> None:
    path = project / wrong.file
    text = path.read_text(encoding="utf-8")
    if text.count(wrong.old) != 1:
        raise SystemExit(f"{wrong.name} does not fit {wrong.file}: run pytest tests/wrongs")
    path.write_text(text.replace(wrong.old, wrong.new), encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()  # its source may have the same second and size


def _environment(home: Path) -> dict[str, str]:
    """Return an environment in which every process imports the copy, not the installed project."""
    (home / "tmp").mkdir(exist_ok=True)
    changes = {"PYTHONPATH": str(home / "project"), "PREFECT_HOME": str(home / "prefect"), "TMPDIR": str(home / "tmp")}
    return {**os.environ, **changes}


def _imported(home: Path) -> Path:
    """Return the folder from which processes of the tests import the packages."""
    where = f"[find_spec(name).submodule_search_locations[0] for name in {_PACKAGES}]"
    code = f"from importlib.util import find_spec; print(*{where}, sep='\\n')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=home, env=_environment(home), check=True, capture_output=True, text=True)
    project = home / "project"
    elsewhere = [line for line in done.stdout.split() if not Path(line).is_relative_to(project)]
    assert not elsewhere, f"these are not in the copy in {project}: {elsewhere}"
    return project


def _play(home: Path, wrong: Wrong | None, tier: str, before: float) -> Row:
    """Run a tier's tests on a copy until one fails: those of the wrong's own package first, where most are caught."""
    names = {path.relative_to(home / "project/tests").parts[0] for path in (home / "project/tests").rglob("test_*.py")}
    package = Path(wrong.file.removeprefix("rloop_core/")).parts[0].removesuffix(".py") if wrong else ""
    own = sorted(names & {package, f"test_{package}.py"})
    started = time.monotonic()
    failed = _first_failed(home, [*TIERS[tier], "-n", "0"], own, may_be_none=True) if own else None
    failed = failed or _first_failed(home, TIERS[tier], sorted(names - {*own, *_LEFT_OUT}))
    return Row(wrong.name if wrong else "no wrong", tier, failed, before + time.monotonic() - started)


def _first_failed(home: Path, options: Sequence[str], names: Sequence[str], *, may_be_none: bool = False) -> str | None:
    """Run the tests in these files and folders until one fails, and return its name.

    Without any test that is a failure too, unless there `may_be_none`.
    """
    results, log = home / "results.xml", home / "log.txt"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *options, *_ALWAYS, *(f"tests/{name}" for name in names)]
    command += [f"--junitxml={results}", "-o", "junit_family=xunit1"]
    with open(log, "wb") as stream:
        done = subprocess.run(
            command, cwd=home / "project", env=_environment(home), stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    _end_processes(home)
    if done.returncode == 0 or (may_be_none and done.returncode == _NO_TESTS):
        return None
    return _failed_case(results) or f"pytest exits {done.returncode}: {log.read_text(errors='replace')[-300:]}"


def _failed_case(results: Path) -> str | None:
    with contextlib.suppress(OSError, ElementTree.ParseError):
        for case in ElementTree.parse(results).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                return f"{case.get('file') or case.get('classname')}::{case.get('name')}"
    return None


def _end_processes(below: Path) -> None:
    """Kill processes that a copy's tests left running."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(f"{below}/" in word for word in (process.environ().get("PYTHONPATH", ""), *process.cmdline())):
                process.kill()


def _print_table(wrongs: Sequence[Wrong], tiers: Sequence[str], rows: dict[str, Row]) -> None:
    known = [rows[wrong.name] for wrong in wrongs if wrong.name in rows]
    caught = {tier: sum(row.tier == tier and row.failed is not None for row in known) for tier in tiers}
    print(f"\n{len(known)} wrongs: " + ", ".join(f"{count} caught by {tier}" for tier, count in caught.items()))
    for row in sorted(known, key=lambda row: (row.failed is None, tiers.index(row.tier))):
        print(row)


if __name__ == "__main__":
    sys.exit(main())
