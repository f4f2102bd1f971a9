"""`python -m nnsight_cli` is the `nnsight` command."""

from nnsight_cli.main import main

if __name__ == "__main__":
    main()
