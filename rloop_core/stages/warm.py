"""Imported once by the fork server, so that a heavy stage starts with its libraries already loaded.

Importing starts no thread and touches no accelerator, which is what makes forking afterwards safe.
"""

from __future__ import annotations

import signal

# Ctrl-C reaches the whole process group; ending the fork server is its caller's business.
signal.signal(signal.SIGINT, signal.SIG_IGN)

import datasets  # noqa: E402, F401
import torch  # noqa: E402, F401
import transformers  # noqa: E402, F401
from trl import GRPOTrainer, SFTTrainer  # noqa: E402, F401
