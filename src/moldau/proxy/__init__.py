"""`moldau proxy`: the queue API for clients that know no brokers, with the routing hidden.

refusals    what a client is told when something fails
consumers   the polls of the consumers that come by
answers     calls with one answer
streams     heartbeats, sending and reading
server      the gRPC server around them
"""
