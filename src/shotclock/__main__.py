"""``python -m shotclock``."""

from shotclock.cli import main

if __name__ == "__main__":
    main()
