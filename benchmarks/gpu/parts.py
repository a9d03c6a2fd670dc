"""All parts, in the table's order."""

from __future__ import annotations

from benchmarks.gpu import evaluate, explore, faults, memory, plan, sharding, study, whole

PARTS = {module.PART.name: module.PART for module in (explore, evaluate, memory, sharding, plan, whole, faults, study)}
