"""Client libraries: Kafka (kafka), raw Kafka protocol (wire), work queues (queue) and HTTP."""
