"""Trajectories: their schema, shards, completeness proof, success rates, and the filter that makes the expert
set."""
