"""From a trace to an estimate: block lifetimes, steps, leaks, the verdict."""
