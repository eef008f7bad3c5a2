"""What `make faults` runs: real brokers under real faults, with a checker of their histories.

`python -m faults` runs the scenarios and prints the tables; `python -m faults.checker FILE…` judges
recorded histories by itself. Nothing in here is imported by the product.
"""
