"""A decoder-only language model on paper: its shape, its bytes, and what fits where.

gguf_header  what a GGUF file says of itself, read without its weights
shape        the numbers that decide memory and work
memory       how much KV cache a limit leaves, and how long a sequence it can hold

Standard library only: engine, operator and command line all stand on it.
"""
