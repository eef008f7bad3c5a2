"""The scenarios, one function each; faults/catalogue.py numbers them."""
