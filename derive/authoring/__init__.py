"""What a model is written with, and what it is: loss, tokens, parameters, penalty, noise, output channel."""
