"""Version 1 of the gRPC API: queue_pb2 and queue_pb2_grpc."""
