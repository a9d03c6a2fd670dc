"""Reports, comparisons and exports of runs, read from the store; nothing here runs a stage."""
