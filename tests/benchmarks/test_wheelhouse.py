"""The pieces that `benchmarks.gpu.wheelhouse` packs for a GPU machine without network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _wheel(folder: Path, name: str, *needs: str) -> None:
    """Write a wheel with one module and a folder of tests; the module is a mebibyte that does not compress."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"DATA = {os.urandom(2**20)!r}\n")
        wheel.writestr(f"{name}/tests/test_it.py", "")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.mark.long
def test_the_pieces_hold_what_the_machine_lacks_and_no_more(tmp_path: Path) -> None:
    wheels, out, site = tmp_path / "wheels", tmp_path / "out", tmp_path / "site"
    wheels.mkdir()
    site.mkdir()
    _wheel(wheels, "outer", "inner", "there")
    _wheel(wheels, "inner")
    _wheel(wheels, "there")
    has = tmp_path / "has.txt"
    has.write_text("There==0.9\nanother @ file:///x\n")
    command = [sys.executable, "-m", "benchmarks.gpu.wheelhouse", "--has", has, "--out", out, "--mib", "1", "outer"]
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}

    done = subprocess.run([*command, "--source"], cwd=ROOT, env=offline, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    pieces = sorted(out.iterdir())
    assert len(pieces) > 1 and all(piece.stat().st_size <= 2**20 for piece in pieces)
    assert "2 packages" in done.stdout and all(str(piece) in done.stdout for piece in pieces)
    archive = b"".join(piece.read_bytes() for piece in pieces)
    subprocess.run(["tar", "xJ", "-C", site], input=archive, check=True)
    assert {"inner", "outer"} <= {path.name for path in site.iterdir()}
    assert not (site / "there").exists() and not (site / "outer" / "tests").exists()
    assert (site / "outer" / "__init__.py").stat().st_size > 2**20
