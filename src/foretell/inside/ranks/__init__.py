"""A process that is one rank of several: what it tells the virtual GPU, and what it does together with the others."""
