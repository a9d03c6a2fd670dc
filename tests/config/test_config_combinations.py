"""What no config can say: refused with the field's path and the fix, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.config import check_context, make_config
from rloop_core.errors import ConfigError
from tests.config.conftest import MINIMAL


def config(**sections):
    return make_config({"problems": {"source": "gsm8k"}, **sections})


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["field"])
def test_refused_by_path_with_the_fix_in_one_line(load, case):
    content = {name: value for name, value in (MINIMAL | case.get("config", {})).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        load(content, *([case["set"]] if "set" in case else []))
    assert caught.value.field == case["field"]
    assert caught.value.fix and case.get("fix", "") in caught.value.fix and "\n" not in str(caught.value)


def test_the_papers_setting_fits_its_context_exactly_also_where_that_is_read_from_the_model():
    config(policy={"context_tokens": 4096}, prompt={"max_tokens": 2048}, explore={"max_completion_tokens": 2048})
    fitting = config()
    check_context(fitting, 4096, "config.json")
    check_context(fitting, None, "unknown")
    with pytest.raises(ConfigError) as caught:
        check_context(fitting, 4095, "/models/x/config.json")
    assert "/models/x/config.json" in caught.value.what
    assert "2047" in caught.value.fix


@settings(max_examples=60)
@given(problems=st.integers(1, 40), group=st.integers(2, 12), batch=st.integers(1, 480))
def test_updates_cover_the_rl_step_in_whole_groups_or_the_config_is_refused(problems, group, batch):
    explore = {"problems_per_step": problems, "group_size": group, "mini_batch_rollouts": batch}
    possible = batch % group == 0 and (problems * group) % batch == 0
    if possible:
        made = config(explore=explore).explore
        assert made.updates_per_step * made.mini_batch_rollouts == made.rollouts_per_step == problems * group
    else:
        with pytest.raises(ConfigError) as caught:
            config(explore=explore)
        assert caught.value.field in ("explore.group_size", "explore.mini_batch_rollouts")
