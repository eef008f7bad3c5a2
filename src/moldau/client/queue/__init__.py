"""Topics as work queues, over the brokers' gRPC API: QueueClient and AsyncQueueClient.

channels       one gRPC channel per broker, and the methods of the API
cluster_view   leaders and addresses, as far as the client knows
resolver       keeps the view up to date
rpc            one request, its routing and retries
poller, settler, sender    requests that are routed by partition
worker, session, heartbeats, handler_loop    a consumer of a group
client, sync_client        what applications use
"""
