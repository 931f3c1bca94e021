"""What the process has: processors, memory, threads, and how it was started."""
