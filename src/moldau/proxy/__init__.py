"""`moldau proxy`: serves the queue API for clients that cannot reach brokers, and routes requests.

rpc_errors        how failures are returned to clients
consumers         one poller per consumer
unary_handlers    calls with one response
stream_handlers   heartbeats, sending and reading
server            the gRPC server
"""
