"""What users and processes say to each other: frozen models, validation, and the words they use."""
