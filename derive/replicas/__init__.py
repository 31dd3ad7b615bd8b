"""The replica calculation as checked symbolic steps: from the partition function to equations and stability."""
