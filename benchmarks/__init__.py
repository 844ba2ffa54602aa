"""The project's own figures beside what a user would use instead: `python -m benchmarks`, one ratio from one run."""
