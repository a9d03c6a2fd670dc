"""A function in a program that does nothing else: its seconds, peak memory and requests.

`measured` starts it as `python -m benchmarks.scale.measure MODULE:FUNCTION ARGUMENT...`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

requests = {"s3": 0}
"""Calls of s3fs to its server so far, the client's own repetitions left out."""


def measured(action: str, *arguments: Any, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What a function of this package came to, `MODULE:FUNCTION`, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale.measure", action, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def figures_of(child: subprocess.Popen[str], patience: float) -> dict[str, Any] | None:
    """The same of a child that runs already; None when it fails, or takes longer than so many seconds."""
    try:
        output, _ = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return None
    return None if child.returncode else json.loads(output.splitlines()[-1])


def peak_mib() -> float:
    """Most memory that this program ever held."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmHWM")) / 1024


def main() -> None:
    action, *arguments = sys.argv[1:]
    module, _, name = action.partition(":")
    if any(argument.startswith("s3://") for argument in arguments):
        _count_requests()
    function = getattr(import_module(f"benchmarks.scale.{module}"), name)
    begun, processor = time.monotonic(), time.process_time()
    result = function(*arguments)
    figures = {"seconds": time.monotonic() - begun, "cpu": time.process_time() - processor, "peak_mib": peak_mib()}
    print(json.dumps({**figures, "all_requests": measure.requests["s3"], **result, "load": os.getloadavg()[0]}))


def _count_requests() -> None:
    import s3fs

    plain = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        measure.requests["s3"] += 1
        return await plain(self, *arguments, **options)

    s3fs.S3FileSystem._call_s3 = counted


if __name__ == "__main__":
    from benchmarks.scale import measure  # this very file, as those who count see it

    main()
