"""Sampling from a policy: its prompts as token ids, its weights on disk, and the engine that generates."""
