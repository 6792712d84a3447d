"""The exception for wrong input, as opposed to wrong code."""


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected."""


def first_line(error: Exception) -> str:
    """The first line of another library's message, without its full stop, for use in a sentence of ours."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
