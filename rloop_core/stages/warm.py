"""Imported once by the fork server, so that a stage starts with its libraries, and what every stage needs, loaded.

Importing starts no thread and touches no accelerator, which is what makes forking afterwards safe.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module

from rloop_core.imports import without_collections
from rloop_core.runtime.orphans import owner_is_gone

_LIBRARIES = (
    "torch",
    "transformers",
    "datasets",
    "trl.trainer.grpo_trainer",
    "trl.trainer.sft_trainer",
    "rloop_core.stages.process",  # a third of a second, most of it the config's
    "rloop_core.stages.execute",
)

with without_collections():
    for _library in _LIBRARIES:
        # While it imports, a fork server does not notice that its caller is gone, and holds the caller's output open.
        if owner_is_gone():
            os._exit(0)
        import_module(_library)
gc.freeze()  # no stage collects, and so copies, what all of them share
