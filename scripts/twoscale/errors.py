"""The one exception that means "the input is wrong", as opposed to "the code is wrong"."""


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected."""
