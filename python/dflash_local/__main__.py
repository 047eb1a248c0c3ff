"""`python -m dflash_local`, the same as the `dflash-local` command."""

from dflash_local.cli.main import main

main()
