"""Programs that use a stand-in Hub, each in a process of its own, as its address is read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import forked
from hub_server import Hub


@dataclass
class HubClient:
    """A folder in which programs run, and the Hub that they use."""

    hub: Hub
    folder: Path

    def run(self, code: str, *arguments: object, **variables: str) -> CompletedProcess[str]:
        """Run code with arguments and environment variables."""
        environment = {
            "HF_ENDPOINT": self.hub.address,
            "HF_HOME": str(self.folder / "hub-cache"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "",
        }
        self.hub.requests.clear()
        return forked.run(code, *arguments, cwd=self.folder, env=environment | variables)

    def program(self, *arguments: object, **variables: str) -> CompletedProcess[str]:
        """Run the program `bertaccum`."""
        return self.run(forked.PROGRAM, *arguments, **variables)
