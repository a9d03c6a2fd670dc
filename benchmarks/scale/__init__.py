"""How the system grows: runs of a thousand iterations, many runs on one server, ten million trajectories."""
