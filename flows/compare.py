"""The paper's table and figures for one RLoop run against its vanilla-RL control (paper, section 5)."""

from typing import Any

from prefect import flow
from prefect.states import Completed

from rloop_core.config.placement import StoreUri
from tasks.analysis import compare_arms
from tasks.credentials import take_credentials


@flow(name="compare", flow_run_name="{run}-against-{vanilla}")
def compare(run: str, vanilla: str, store: StoreUri = ".rloop/store") -> Any:
    """Write the comparison's page into the store and return its address; both runs must be in the store.

    Args:
        run: Name of the RLoop run.
        vanilla: Name of its control, usually the same with `-vanilla-rl`.
        store: Object store of both, such as s3://bucket/prefix. No secrets in it.
    """
    take_credentials()
    page, sentence = compare_arms(run, vanilla, store)
    return Completed(message=sentence, data=page)
