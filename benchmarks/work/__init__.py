"""The work that methods are compared on: one user's workload a file, run by the runner as any other."""
