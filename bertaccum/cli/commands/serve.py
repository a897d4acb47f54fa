"""`bertaccum serve`."""

from __future__ import annotations

import signal
import sys
from typing import Any

from bertaccum import api
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, options, shown
from bertaccum.cli.shared import announce_run
from bertaccum.options.commands import ServeConfig
from bertaccum.system.stopping import Terminated


@command()
@options(ServeConfig)
@shown
def serve(view: View, **values: Any) -> None:
    """Serve the best model of a run over HTTP.

    POST /predict takes {"texts": ["a text"]} or, for pairs, {"texts": [{"text": "a text",
    "text_pair": "another text"}]}. Texts of requests that arrive together are predicted together.
    GET / is a page to try texts in a browser, /docs describes the interface, /healthz the run, and
    /metrics has the metrics for Prometheus. The command needs pip install 'bertaccum[serve]'.

    \b
    Examples:
      bertaccum serve
      bertaccum serve --run runs/20260102-030405 --port 0
      bertaccum serve --host 0.0.0.0 --max-queue 4096

    SIGINT (Ctrl-C) and SIGTERM stop the service after the requests in progress; a second SIGINT
    stops it immediately.
    """
    with view:
        announce_run(view, values["run"])
        view.note("loading the model")
        try:
            api.serve(
                ready=lambda address: view.note(f"serving at {address} (stop with Ctrl-C)"),
                note=view.note,
                **values,
            )
        except (KeyboardInterrupt, Terminated) as stop:
            view.note("stopped")
            number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
            sys.exit(128 + number)
