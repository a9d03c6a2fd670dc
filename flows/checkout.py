"""A deployment's pull step: where this machine has rloop, whatever its path is on any other."""

from pathlib import Path


def installed() -> dict[str, str]:
    """The folder that `flows` was installed from: a clone (`pip install -e`), or the image's copy of it.

    No path of the machine that deployed is kept by the server, and each worker may have its clone elsewhere.
    """
    return {"directory": str(Path(__file__).resolve().parent.parent)}
