"""Tests of policies: draws, ledger, margins, the document, and what is released."""
