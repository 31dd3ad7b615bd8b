"""One node of the channel: fields, proximal point, what is averaged there."""
