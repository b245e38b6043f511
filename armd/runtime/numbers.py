"""Whole numbers that a person wrote."""


def whole_number(text: str, least: int, most: int) -> int | None:
    """The number; None if the text is none, or none between the two. Python itself takes digits of
    other kinds for some, and raises for very many."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return number if least <= (number := int(text)) <= most else None
