"""The Streamlit app. Knows records and figures; never torch, Triton or NVML."""
