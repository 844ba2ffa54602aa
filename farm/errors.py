"""What can go wrong, one class a kind; each carries the exit code that the command line gives for it."""

from __future__ import annotations

__all__ = [
    "EXIT_COMPLETE",
    "EXIT_FALLS_SHORT",
    "EXIT_INCOMPLETE",
    "EXIT_INFRASTRUCTURE",
    "EXIT_USAGE",
    "EnvironmentFailed",
    "FarmError",
    "Incomplete",
    "InfrastructureFailed",
    "UsageError",
]

EXIT_COMPLETE = 0
"""The run is complete, whatever it decided."""
EXIT_FALLS_SHORT = 1
"""``--require`` was asked for and a requested decision falls short."""
EXIT_USAGE = 2
"""Usage or configuration."""
EXIT_INCOMPLETE = 3
"""Something requested is incomplete: no worker for a queue, timed out, interrupted."""
EXIT_INFRASTRUCTURE = 4
"""Infrastructure failed: no server, no disk, no index."""


class FarmError(Exception):
    """The root: one line that names what was wrong, where, and what to do next."""

    exit_code = EXIT_INFRASTRUCTURE


class UsageError(FarmError):
    """Raised when what the user wrote cannot be meant: a version, a matrix, an option."""

    exit_code = EXIT_USAGE


class Incomplete(FarmError):
    """Raised when something requested could not be completed."""

    exit_code = EXIT_INCOMPLETE


class InfrastructureFailed(FarmError):
    """Raised when the farm's own parts fail: the server, the store, the disk, the index."""


class EnvironmentFailed(FarmError):
    """Raised when an arm's environment cannot be resolved, built or proven.

    ``last_words`` holds the installer's own last lines.
    """

    def __init__(self, message: str, last_words: str = "") -> None:
        super().__init__(message)
        self.last_words = last_words
