"""A node whose pods are processes of this machine.

kubelet       registers the node, gives every bound pod a worker
pods          one pod: volumes, init containers, containers, deletion, status
containers    one container: start, probe, restart with back-off, stop
process       one process: its own session, its output into a log, its end
"""
