"""A small socket client on moldau.wire, for raw access and tests."""
