"""`python -m kvcalc`: the same as the `kvcalc` command."""

from kvcalc.cli import main

if __name__ == "__main__":
    main()
