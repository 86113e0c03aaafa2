"""Manifests as a pure function of the spec and the operator's settings."""
