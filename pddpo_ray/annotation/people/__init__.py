"""Who answers: accounts, invitations, consent, and what the database knows about a person."""
