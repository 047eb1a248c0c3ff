"""`python -m dflash_local`, the same as the `dflash-local` command."""

from dflash_local.cli.entry import main

main()
