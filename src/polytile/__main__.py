"""`python -m polytile` is the `polytile` command."""

from polytile.cli import main

if __name__ == "__main__":
    main()
