"""How commands connect to brokers: TLS, users, tokens and profiles."""
