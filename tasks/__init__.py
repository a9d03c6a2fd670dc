"""Prefect tasks around the stages: names, retries, cached states, artifacts. No algorithms."""
