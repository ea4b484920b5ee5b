"""`python -m tinkex` is the `tinkex` command."""

from tinkex.cli.main import main

if __name__ == "__main__":
    main()
