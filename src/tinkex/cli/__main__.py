"""`python -m tinkex.cli` is the `tinkex` command."""

from tinkex.cli.main import main

if __name__ == "__main__":
    main()
