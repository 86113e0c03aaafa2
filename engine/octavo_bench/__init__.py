"""Benchmarks of any server that speaks the OpenAI API, and of the engine in this process.

It knows the wire and no engine: what it measures is what a client would see. `offline` alone runs
the engine itself, and is imported when it is asked for.
"""
