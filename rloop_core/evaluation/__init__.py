"""Evaluation: sampling a policy on held-out problems, avg@k and pass@k with bootstrap intervals."""
