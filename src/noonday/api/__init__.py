"""HTTP in: requests become transactions, answers are written down in ``documents.py``."""
