"""The gRPC protocol server: the queue API of proto/moldau/v1/queue.proto."""
