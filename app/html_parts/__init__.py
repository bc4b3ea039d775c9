"""The exported page's building blocks, style and script."""
