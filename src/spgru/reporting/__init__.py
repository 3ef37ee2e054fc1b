"""What studies and benchmarks make their reports of: tables, Markdown, figures.

Imports nothing else of the library.
"""
