"""Experiment trackers: curves of explore and rft where a team looks at its other experiments."""

from rloop_core.trackers.tracking import check_trackers, tracked

__all__ = ["check_trackers", "tracked"]
