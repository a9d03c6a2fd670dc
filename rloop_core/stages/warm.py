"""Imported once by the fork server, so that a heavy stage starts with its libraries already loaded.

Importing starts no thread and touches no accelerator, which is what makes forking afterwards safe.
"""

from __future__ import annotations

import datasets  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from trl import GRPOTrainer, SFTTrainer  # noqa: F401
