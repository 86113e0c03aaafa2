"""Fixtures that the end-to-end tests share."""

from support.api import api, kubectl

__all__ = ["api", "kubectl"]
