"""What passes between the control plane and the engine, each thing written once.

names      identifiers of the API group, labels, ports, routes, images
settings   the engine's settings: one dataclass makes flags, environment and documentation
failures   why an engine could not start, as the operator reads it from the termination message
metrics    the names of the series that the engine exports

Standard library only: both towers stand on it.
"""
