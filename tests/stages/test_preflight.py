from __future__ import annotations

import pytest

from rloop_core.errors import ConfigError
from rloop_core.organism import bundled_policy_path
from rloop_core.stages.preflight import check_memory
from tests.conftest import small_config


def test_a_stage_that_cannot_fit_on_the_device_is_refused_with_the_setting() -> None:
    config = small_config(placement={"generation_batch": 4096, "micro_batch_rollouts": 8}, explore={"group_size": 8})
    check_memory(config, bundled_policy_path(), available=8e9)
    with pytest.raises(
        ConfigError, match=r"placement: \w+ needs about .* GiB, the device has 0\.1 free \(fix: set placement\."
    ):
        check_memory(config, bundled_policy_path(), available=1e8)
