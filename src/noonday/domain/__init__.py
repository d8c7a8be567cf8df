"""The rules of Noonday, pure: no I/O, no clock of their own, no asyncio."""
