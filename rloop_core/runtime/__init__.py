"""Processes and machines: their lifetime, their orphans, the supervisor of a stage, Ray."""
