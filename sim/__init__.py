"""A seeded simulation of whole clusters: the product's brokers, clients and faults in one process.

scheduler.py   virtual time: what happens next
loop.py        the event loop of one simulated process
network.py     hosts, connections, and what happens to bytes on their way
machine.py     what a broker gets from its machine
node.py        one broker: a host, a disk, and a process that ends and begins
clients/       who uses the cluster, over the wire
world.py       all of it together, and the verdict
"""
