"""The one error a model's author meets: a sentence that names the model, the field at fault and what is allowed."""


class ModelError(ValueError):
    """A model is not well posed; the message names the field at fault."""
