"""Exact comparison of two answers without the math engine: numbers, units, words, structures and closed forms."""
