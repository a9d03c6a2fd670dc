"""Imported once by the fork server, so that a heavy stage starts with its libraries already loaded.

Importing starts no thread and touches no accelerator, which is what makes forking afterwards safe.
"""

from __future__ import annotations

import os
from importlib import import_module

from rloop_core.strays import owner_is_gone

_LIBRARIES = ("torch", "transformers", "datasets", "trl.trainer.grpo_trainer", "trl.trainer.sft_trainer")

for _library in _LIBRARIES:
    # While it imports, a fork server does not notice that its caller is gone, and holds the caller's output open.
    if owner_is_gone():
        os._exit(0)
    import_module(_library)
