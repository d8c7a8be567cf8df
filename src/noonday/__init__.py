"""Noonday: a self-hosted job scheduler service on Postgres."""

__version__ = "0.1.0"
