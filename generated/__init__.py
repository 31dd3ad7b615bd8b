"""Generated solvers, one folder a model and one below it a structure; written by `saddleforge generate`."""
