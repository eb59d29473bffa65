"""What is judged, how, and where is that kept? A subject, measurements of it, and one store."""
