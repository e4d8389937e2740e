"""Methods side by side: a suite names the runs, every run is an ordinary one, and one page shows them all."""
