"""The definition of models by their authors: loss, tokens, parameters, penalty, noise, output channel."""
