"""`python -m holdfast`, and the script that the checkout's `./holdfast` runs."""

from holdfast.faces.cli.main import main

if __name__ == "__main__":
    main()
