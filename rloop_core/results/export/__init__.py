"""A run's policy, taken out of the store for use elsewhere, with a model card."""
