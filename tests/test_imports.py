"""What short commands do without: what goes on working without it, and that it is there again afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.process

SCRIPT = """
import importlib.util, sys
from rloop_core.imports import without_pandas
with without_pandas():
    import pyarrow as pa
    import pyarrow.dataset
    import pyarrow.parquet as pq
    pq.write_table(pa.table({"a": [1, 2]}), sys.argv[1])
    assert pq.read_table(sys.argv[1], columns=["a"]).to_pydict() == {"a": [1, 2]}
    assert importlib.util.find_spec("pandas") is not None
    try:
        import pandas
    except ImportError:
        print("not now")
assert "pandas" not in sys.modules
import pandas
print(pandas.DataFrame({"a": [1]}).a.sum())
"""


def test_arrow_works_without_pandas_which_can_be_loaded_later(tmp_path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "x.parquet")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["not now", "1"]
