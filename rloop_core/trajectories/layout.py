"""Names inside the artifacts that carry trajectories; whoever writes or reads one takes them from here."""

TRAJECTORIES_FOLDER = "trajectories"
"""Harvest: consolidated trajectories, `part-*.parquet`."""
SNAPSHOT_RANK = 10_000
"""First `rank` of rollouts that harvest sampled from snapshots: above every rank of the RL steps."""
RATES_FILE = "success_rates.parquet"
"""Harvest: one row a problem."""
EXPERTS_FILE = "experts.parquet"
"""Filter: the expert set."""
LEDGER_FILE = "ledger.json"
"""Filter: how many trajectories and problems were left after each step."""
