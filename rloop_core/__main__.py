"""`python -m rloop_core` is the `rloop` command."""

from rloop_core.cli import main

if __name__ == "__main__":
    main()
