"""Rewards: what judges a completion. The verifier is the default; others are plain functions."""
