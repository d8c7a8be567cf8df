"""What the bench is doing now, for whoever waits."""

from __future__ import annotations

import time

from rich.console import Console

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line with the time, beside the table."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/]  {text}")
