"""Large files move through little memory, and what was given up does not go on behind the back of who gave it up."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from rloop_core.store import Store, s3, transfer
from tests.conftest import ROOT
from tests.store.faulty_s3 import FaultyS3

_MIB = 1 << 20
_MOVE = """
import sys
from pathlib import Path
from benchmarks.measure import peak_mib
from rloop_core.store import Store
store, source, target = Store(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
store.check_writable()
before = peak_mib()
store.upload(source, "big")
store.download("big", target)
print(peak_mib() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
def test_memory_does_not_grow_with_the_file(s3_server: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 64 * _MIB)
    command = [sys.executable, "-c", _MOVE, f"{s3_server}/{uuid.uuid4().hex}", str(source), str(tmp_path / "target")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (tmp_path / "target").stat().st_size == 64 * _MIB
    assert float(done.stdout) < 40, f"{float(done.stdout):.0f} MiB"


def test_a_cancelled_transfer_stops(s3_server: str, faulty: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"{s3_server}/{uuid.uuid4().hex}")
    store.write_bytes("a", b"x" * 3_000_000)
    monkeypatch.setattr(s3, "RANGE_BYTES", 1_000_000)
    taken: list[int] = []
    began = threading.Event()

    def take(place: int, piece: bytes) -> None:
        began.set()
        taken.append(len(piece))
        time.sleep(0.02)

    def give_up(call: object) -> None:
        assert callable(call)
        threading.Thread(target=call, daemon=True).start()
        assert began.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer.download(store._fs, store._path("a"), 3_000_000, take, 60.0, give_up)
    had = len(taken)
    time.sleep(0.5)
    assert len(taken) == had
    assert sum(taken) < 3_000_000
