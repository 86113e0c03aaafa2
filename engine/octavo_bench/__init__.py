"""Benchmarks of any server that speaks the OpenAI API.

It knows the wire and no engine: what it measures is what a client would see.
"""
