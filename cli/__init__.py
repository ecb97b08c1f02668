"""The command line: one file per command, thin.

The entry points are here, and import a command when they are called: every worker process imports the script that
started it, and has no use for commands.
"""


def packtrain() -> None:
    """Runs the command `packtrain`."""
    from .main import main

    main()


def pack() -> None:
    """Runs the command `pack`."""
    from .pack_cmd import main

    main()
