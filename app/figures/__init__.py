"""Records to Plotly figures: pure functions, no Streamlit. Each module offers chart(...) -> Chart | Absent."""
