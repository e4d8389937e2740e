"""Commands about a run: begin, watch, certify, release."""
