"""The report of a run, from its store's artifacts: tables, figures and one HTML file."""
