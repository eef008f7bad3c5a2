"""Coverage-guided fuzzing of everything that reads bytes of others: see __main__.py."""
