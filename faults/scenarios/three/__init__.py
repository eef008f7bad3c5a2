"""The scenarios of three brokers, one function each; faults/catalogue.py numbers them."""
