"""Learning, forgetting and similarity of solutions over a run's checkpoints."""
