"""The sandbox images of development and tests, made without any registry."""
