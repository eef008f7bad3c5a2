"""The gRPC door: the queue API of proto/moldau/v1/queue.proto over the service layer."""
