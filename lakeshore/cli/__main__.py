"""``python -m lakeshore.cli``: the command, where its script is not on the path."""

from lakeshore.cli import main

if __name__ == "__main__":
    main()
