"""Measuring. Knows the kernels; nothing of Streamlit."""
