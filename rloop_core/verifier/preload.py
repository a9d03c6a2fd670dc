"""Imported by the fork server: the engine and its parser tables, so that a forked worker is ready at once."""

from __future__ import annotations

from rloop_core.verifier.engine import warm_up

warm_up()
