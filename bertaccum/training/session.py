"""What runs use of the process in which they train."""

from __future__ import annotations

from dataclasses import dataclass

from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watchdog import Watch
from bertaccum.progress import Progress
from bertaccum.stopping import Stopping


@dataclass(frozen=True)
class Session:
    """A process that trains: its place among the workers, and whom it hears and tells.

    Args:
      topology: Replicas of the run.
      watch: Watch to which the run reports the activity of this worker.
      stopping: Records requests to stop the run.
      progress: Called during preparations and evaluations.
    """

    topology: Topology
    watch: Watch
    stopping: Stopping
    progress: Progress

    def asked_to_stop(self) -> bool:
        """Return whether this worker was asked to stop."""
        return self.stopping.requested is not None
