"""Level-triggered controllers: each looks at what is, decides in values, and acts.

deployments   Deployment -> ReplicaSets, roll-outs, status
replicasets   ReplicaSet -> Pods
scheduler     Pod -> the node, or a reason why not
endpoints     Service -> EndpointSlices and Endpoints
loop          the one thin loop that runs them over the store
"""
