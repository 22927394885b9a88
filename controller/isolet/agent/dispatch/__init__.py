"""One-shot dispatch on a node: the document goes in once, events are kept and may be followed."""
