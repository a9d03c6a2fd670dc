"""A function in a process of its own, which takes what it holds of a GPU with it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from rloop_core.runtime.lifetime import die_with_parent

Result = TypeVar("Result")


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """What the function returns, or raises, in a fresh process that ends with it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=die_with_parent) as pool:
        return pool.submit(function, *arguments).result()
