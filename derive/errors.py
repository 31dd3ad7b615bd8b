"""The one error a model's author meets: a sentence that names the model, the field at fault and what is allowed."""


class ModelError(ValueError):
    """A model is not well posed; the message names the field at fault."""


def told(error: BaseException) -> str:
    """The name of an error of somebody else's, and what it says, where it can."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
