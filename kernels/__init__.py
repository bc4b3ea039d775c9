"""The attention kernels. Knows torch and Triton; nothing of profiling or Streamlit."""
