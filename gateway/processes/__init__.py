"""The processes of ``sluice serve``: a server, or several and their supervisor."""
