"""Plants a mistake in each process of a drill that is given this folder and its name."""

from __future__ import annotations

import os

from tests.planted.mistakes import VARIABLE, plant

if VARIABLE in os.environ:
    plant(os.environ[VARIABLE])
