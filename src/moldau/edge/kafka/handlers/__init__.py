"""The handlers of the Kafka APIs, one module per API. served_apis.py collects them."""
