"""The HTTP protocol server: JSON under /api/v1, health checks and metrics.

`listener.py` listens, and imports starlette and uvicorn only when the first client connects.
`app.py` combines the routes, one module per resource.
"""
