"""Exact comparison of two answers without the math engine: numbers, units, words and structures."""
