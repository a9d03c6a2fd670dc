"""Rejection-sampling fine-tuning: the exploitation step of Algorithm 1."""

from rloop_core.rft.finetune import RFTJob, finetune

__all__ = ["RFTJob", "finetune"]
