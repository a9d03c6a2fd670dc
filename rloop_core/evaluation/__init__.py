"""Evaluation: avg@k, pass@k and majority@k with bootstrap intervals."""
