"""What a run will cost, from its config and a documented model; nothing is loaded, opened for writing, or asked."""
