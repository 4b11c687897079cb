"""``python -m gpu_lifecycle``: the same as the ``gpu-lifecycle`` command."""

from gpu_lifecycle.cli import main

raise SystemExit(main())
