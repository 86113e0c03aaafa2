"""An in-memory Kubernetes API server for one machine: laptops, demos and tests, never a cluster.

The rooms: `resources` (what is served), `store` (objects, versions, watches), `http` (who may ask
what), and one small file for each idea in between. Start it with `server.running_server`.
"""
