"""Several machines for one stage: `rloop run` on the first, `rloop node` on the others."""
