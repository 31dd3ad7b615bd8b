"""What is built on the core: nothing in the core imports it."""
