"""What both servers share: errors, limits of size and rate, security headers, bearer tokens."""
