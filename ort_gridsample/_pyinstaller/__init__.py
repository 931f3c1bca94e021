"""PyInstaller's hook for this package, found by the entry point group ``pyinstaller40``."""

from pathlib import Path


def get_hook_dirs() -> list[str]:
    """List the folders with hooks."""
    return [str(Path(__file__).parent)]
