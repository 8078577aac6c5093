"""``python -m nousd`` is ``nousd``."""

from nousd.cli.nousd.main import main

if __name__ == "__main__":
    main()
