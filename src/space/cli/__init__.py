"""The `space` command; one file a subcommand.  A client of the public API through `space.sdk`.

Start-up is part of what users feel: nothing is imported before it is needed, and no server package but inside the
commands that start or inspect a server on this machine.
"""

import sys


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        import space

        print(f"space {space.__version__}")
        return
    from space.cli.entry import enter

    sys.exit(enter(arguments))
