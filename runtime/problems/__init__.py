"""Problems: a model with numbers in it, its compiled solver, its law, its symmetries."""
