"""Extensions of the core, which imports none of them."""
