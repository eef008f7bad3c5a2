"""What an application uses to talk to a cluster."""
