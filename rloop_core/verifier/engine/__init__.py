"""The math engine: math-verify's LaTeX grammar, sympy, and comparison by value. Runs in worker processes only."""
