"""The HTTP door: JSON under /api/v1, health for those who watch over a broker.

`server.py` listens; it imports neither starlette nor uvicorn until somebody connects. `app.py` puts
the areas together, one module each.
"""
