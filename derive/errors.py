"""The one error a model's author meets: a sentence that names the model, the field at fault and what is allowed."""


class ModelError(ValueError):
    """A model is not well posed; the message names the field at fault.

    Example:
        >>> @sf.model(tokens=0)
        ... def wrong(X, Y):
        ...     return sf.half_square(Y - X)
        Traceback (most recent call last):
            ...
        saddleforge.derive.errors.ModelError: tokens = 0 is out of range; allowed are whole numbers from 1
    """
