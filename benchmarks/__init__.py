"""What `make bench` runs: the broker beside librdkafka's mock and other message systems.

`python -m benchmarks` runs the suites and prints the table; `python -m benchmarks.profile` shows
where the broker's time goes. Nothing in here is imported by the product.
"""
