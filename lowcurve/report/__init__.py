"""How are results shown? Tables as text, Markdown, LaTeX and CSV; figures; and one HTML page that stands alone."""
