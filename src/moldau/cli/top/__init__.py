"""`moldau top`: scrapes all brokers, computes figures, and draws them on the terminal."""
