"""What a run achieved: read from the store's artifacts, never from memory; tables, figures and one HTML file."""
