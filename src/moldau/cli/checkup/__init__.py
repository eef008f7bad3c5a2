"""Checks of a whole cluster for `moldau doctor`: `gather` asks, `findings` judges."""
