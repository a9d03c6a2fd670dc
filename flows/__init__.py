"""The algorithm, readable as the paper's box."""
