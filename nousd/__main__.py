"""``python -m nousd`` is ``nousd``."""

from nousd.cli.daemon_main import main

if __name__ == "__main__":
    main()
