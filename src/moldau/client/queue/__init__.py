"""Topics as work queues, over the brokers' gRPC API: QueueClient and AsyncQueueClient.

channels   a connection per broker, and the calls that there are
view       who leads what, and so where a request belongs
resolver   keeps the view fresh
calls      one request, and how often it may be tried
polling, settling, sending   what is routed by partition
worker, heartbeats, work     a consumer of a group
client, sync                 what applications use
"""
