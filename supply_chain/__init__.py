"""What the product is made of, and what is known about it: see __main__.py."""
