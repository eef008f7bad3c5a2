"""What holds for every test: its kind, its surroundings, its order, and what a run says of it."""
