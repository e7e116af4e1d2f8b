"""`make real-scripts`: training scripts people really run, each through `foretell run` as its users would start it."""
