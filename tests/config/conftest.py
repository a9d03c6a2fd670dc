from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rloop_core.config import Config, load_config

MINIMAL: dict[str, Any] = {"problems": {"source": "gsm8k"}}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Config]:
    """Load a config from YAML text (or plain data) with overrides."""

    def load_it(content: str | dict[str, Any] = MINIMAL, *overrides: str) -> Config:
        path = tmp_path / "config.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_config(path, overrides)

    return load_it
