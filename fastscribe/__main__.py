from fastscribe.cli import main

main()
