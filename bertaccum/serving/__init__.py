"""The HTTP service: its queue, requests, metrics and page."""
