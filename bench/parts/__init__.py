"""The parts of the benchmark, in the order in which they run."""
