"""The one exception that means "the input is wrong", as opposed to "the code is wrong"."""


class InputError(Exception):
    """Wrong input. The message is one sentence: the file or key, what was found, what was expected."""


def first_line(error: Exception) -> str:
    """What another library's exception says in its first line, to be quoted in a sentence of ours."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
