"""Lists in every form: `reader` finds the form, the other modules read it and say what its lines mean."""
