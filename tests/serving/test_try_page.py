"""The page of the service on which users try texts, in a browser."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browsing import browse
from local_service import Model, Service, running

from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION
from bertaccum.serving.service import page_headers, try_page
from bertaccum.tasks.labels import Labels

HOSTILE = '<img src="http://127.0.0.1:9/x.png" onerror="document.title=1"><script>x()</script>&amp;'
CLASSES = Labels(["0", "1"], ["bad", "<good>"])
PAIRS = Labels(["0", "1"], ["no", "yes"], pairs=True)
SEVERAL = Labels(["0", "1", "2"], ["cold", "rude", "dear"], task=MULTI_LABEL)
SCORES = Labels([], [], task=REGRESSION, pairs=True)


class Fixed(Model):
    """A model that gives every text the same prediction."""

    def __init__(self, served: Labels, **fields: Any) -> None:
        super().__init__(served)
        self._fields = fields

    def __call__(self, texts: Sequence[TextAndPair]) -> list[Prediction]:
        return [Prediction(text, text_pair=pair, **self._fields) for text, pair in texts]


def test_page_is_self_contained_and_escapes_the_name_of_the_run() -> None:
    page = try_page("<r>&", None, CLASSES)
    assert "<h1>&lt;r&gt;&amp;</h1>" in page and "update" not in page.split("<main>")[0]
    assert 'id="text_pair"' not in page
    assert 'id="text_pair"' in try_page("r", 3, PAIRS)
    for address in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert address in ("data:,", "/docs", "/openapi.json")
    assert not re.search(r"https?:|@import|url\(|innerHTML", page)


def test_policy_allows_only_the_script_and_the_styles_of_the_page() -> None:
    policy = page_headers(try_page("r", 3, CLASSES))["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert len(re.findall(r"(?:script|style)-src 'sha256-[\w+/]{43}='", policy)) == 2


def shown(
    browser: str, service: Service, folder: Path, size: str = "500,900", **texts: str
) -> tuple[str, str]:
    """Return the DOM of the page with texts, and the messages of its console; take a picture."""
    link = f"http://127.0.0.1:{service.port}/#{urllib.parse.urlencode(texts)}"
    picture = f"--screenshot={folder / 'page.png'}"
    arguments = ["--dump-dom", f"--window-size={size}", picture]
    return browse(browser, link, folder / "profile", *arguments)


def bars(dom: str) -> list[tuple[str, str, str, bool]]:
    """Return the name, width, number and choice of each bar of the page."""
    row = r'<div class="bar( chosen)?"><span>(.*?)</span><div class="track"><div class="fill" '
    row += r'style="width: ([\d.]+%);"></div></div><span>(.*?)</span></div>'
    return [(name, width, text, bool(own)) for own, name, width, text in re.findall(row, dom)]


def test_browser_draws_the_probabilities_of_a_text(browser: str, tmp_path: Path) -> None:
    model = Fixed(CLASSES, label="<good>", probabilities={"bad": 0.25, "<good>": 0.75})
    with running(model) as service:
        dom, console = shown(browser, service, tmp_path, text=HOSTILE)
    assert console == ""
    assert bars(dom) == [("&lt;good&gt;", "75%", "0.7500", True), ("bad", "25%", "0.2500", False)]
    assert "<h2>&lt;good&gt;</h2><blockquote>&lt;img src=" in dom
    assert "<title>reviews - bertaccum</title>" in dom
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_browser_shows_several_labels_and_windows(browser: str, tmp_path: Path) -> None:
    shares = {"cold": 0.5, "rude": 0.125, "dear": 1.0}
    model = Fixed(SEVERAL, labels=["cold", "dear"], probabilities=shares, window=2, windows=3)
    with running(model) as service:
        dom, console = shown(browser, service, tmp_path, text="a")
    assert console == ""
    assert bars(dom) == [
        ("cold", "50%", "0.5000", True),
        ("rude", "12.5%", "0.1250", False),
        ("dear", "100%", "1.0000", True),
    ]
    assert "<h2>cold, dear</h2>" in dom and "read in 3 windows; window 2 decided" in dom


def test_browser_shows_the_score_of_a_pair(browser: str, tmp_path: Path) -> None:
    with running(Fixed(SCORES, score=3.5)) as service:
        dom, console = shown(browser, service, tmp_path, text="a b", text_pair="c")
    assert console == ""
    assert "<h2>3.5000</h2><blockquote>a b</blockquote><blockquote>c</blockquote>" in dom
    assert bars(dom) == []


def test_browser_shows_why_a_request_was_refused(browser: str, tmp_path: Path) -> None:
    with running(Model()) as service:
        dom, _ = shown(browser, service, tmp_path, text="fail")
    assert '<p id="problem" role="alert">the service failed; its log says why</p>' in dom
