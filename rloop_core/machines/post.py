"""Where the machines of a run leave word for each other: `<scratch>/machines/<run>/`.

`node-*.json` is each `rloop node`'s own, `launch.json` the stage that is computed together, `head.json` the run's, and
`ended.json` what the run leaves when it has ended well.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from rloop_core.config import Config
from rloop_core.machines.beats import Beating
from rloop_core.stages.versions import versions

LAUNCH, HEAD, NODE = "launch.json", "head.json", "node-"
ENDED = "ended.json"
COMMAND = "rloop node"
_SAME = ("rloop", "python", "torch", "trl", "accelerate", "deepspeed")


def post_folder(scratch: str, run: str) -> Path:
    """The folder of a run, as it is called on every machine."""
    return Path(scratch).expanduser().absolute() / "machines" / run


@contextlib.contextmanager
def presence(config: Config) -> Iterator[None]:
    """While the block runs, other machines know that the run does; once it has ended without an error, they go too."""
    if config.placement.machines == 1 or not config.placement.scratch:
        yield
        return
    folder = post_folder(config.placement.scratch, config.name)
    (folder / ENDED).unlink(missing_ok=True)
    with Beating(folder / HEAD, host=socket.gethostname()):
        yield
    with contextlib.suppress(OSError):
        (folder / ENDED).write_text(f'{{"run": "{uuid.uuid4().hex}"}}')


def releases() -> dict[str, str]:
    """Versions that must be the same on all machines of a run."""
    return {name: version for name, version in versions().items() if name in _SAME}
