"""The math engine: formulas as sympy expressions, compared by value. Runs in worker processes only."""
