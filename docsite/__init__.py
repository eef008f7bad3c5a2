"""The documentation as a web site that needs no network: `make site`.

pages.py reads the documents, hooks.py is what mkdocs calls, __main__.py builds and checks.
"""
