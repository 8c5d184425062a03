"""What an evaluation refuses, with a message fit for the user."""


class EvalError(Exception):
    """A text, a data set or an option that can't be used; names it and the reason."""
