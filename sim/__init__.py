"""A seeded simulation of whole clusters: the product's brokers, clients and faults in one process.

scheduler.py   virtual time: what happens next
loop.py        the event loop of one simulated process
network.py     hosts, connections, and what happens to bytes on their way
machine.py     what a broker gets from its machine; simdisk.py is its disk
node.py        one broker: a host, a disk, and a process that ends and begins
grpc.py        gRPC's transport, without its C core
clients/       who uses the cluster, over the wire; workload.py says what each kind is to a world
plan.py        what a seed draws
faults.py      what breaks, and when; rot.py flips bits
invariants.py  what must hold inside the brokers
world.py       all of it together, and the verdict
shrink.py      makes a failing world smaller
long.py        world after world; coverage.py counts what they execute, report.py publishes it
mutants/       mistakes that must be found
group.py       one Raft group alone, for scenario.py, which plays scripts
"""
