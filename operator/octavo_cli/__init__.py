"""`octavo <command>`: a table of commands, each imported only when it is typed."""
