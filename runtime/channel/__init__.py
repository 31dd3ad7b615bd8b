"""The channel of a model: law of the fields, quadrature nodes, proximal points and their responses."""
