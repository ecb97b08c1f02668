"""``python -m packtrain``."""

from packtrain._cli.main import main

if __name__ == "__main__":
    main()
