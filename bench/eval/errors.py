"""The error of an evaluation, with a message for the user."""


class EvalError(Exception):
    """A text, a data set or an option that can't be used; names it and the reason."""
