"""Speed and size of gpu-lifecycle, measured on a test machine: ``python -m benchmarks`` prints one table."""
