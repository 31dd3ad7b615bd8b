"""What the template of each generated file is filled with: channel, prior, tangent, metric, temperature, Bayes."""
