"""Values that decide what the script does, computed on the host while kernels compute nothing."""
