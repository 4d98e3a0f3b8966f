class Unsupported(Exception):
    """An engine, or the converter of its models, does not take the row. The message says what of the row."""
