"""A seeded simulation of whole Raft groups: real cores over real logs, with a network, disks and
processes that fail. The same seed gives the same run, event by event.

    world.py     time, the heap of events, the fault actor and the clients: the way in
    broker.py    one broker: carries out what its core wants, as the product's driver does
    brokerdisk.py, process.py   what it has on its disk, and in memory
    storage.py   its disk: log and votes, on the simulated disk or in memory
    adapter.py   entries on their way between logs; the core sees them through replica/log_view.py
    network.py   delay, loss, duplicates, reordering, cut links
    rates.py     how often which fault happens, drawn per seed
    checks.py    what must hold after every step
    mutants.py   cores and drivers with a planted mistake each: the checks must find them
    scenario.py  scripted runs, read from text
"""
