"""One node of the channel: fields, proximal point, averages over its law."""
