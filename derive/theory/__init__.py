"""Physics in symbols: free entropy, saddle point, stability, temperature, Bayes; where a loss is not smooth."""
