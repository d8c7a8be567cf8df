"""``python -m noonday`` and the command ``noonday``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from noonday.cli import app

    app()


if __name__ == "__main__":
    main()
