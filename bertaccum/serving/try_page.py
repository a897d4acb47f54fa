"""The page of the service on which users try texts in a browser."""

from __future__ import annotations

import base64
import hashlib
import re

from bertaccum.reporting.rendering import render
from bertaccum.tasks.labels import Labels


def try_page(run: str, update: int | None, labels: Labels) -> str:
    """Return a page, in HTML, that sends texts to `/predict` and draws the predictions.

    Args:
      run: Name of the run.
      update: Update at which the best checkpoint was saved, or None if unknown.
      labels: Labels of the run.
    """
    return render("serve.html.j2", run=run, update=update, task=labels.task, pairs=labels.pairs)


def page_headers(page: str) -> dict[str, str]:
    """Return headers that allow only the page's own script and styles, and requests to the service.

    A text that is shown on the page therefore cannot run or load anything.
    """
    allowed = {
        f"{kind}-src": f"'sha256-{_digest(part)}'"
        for kind in ("script", "style")
        for part in re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    }
    policy = {"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", **allowed}
    policy |= {"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
