"""What only a GPU can show, part by part: `python -m benchmarks.gpu --help`."""
