"""What a user would run otherwise."""
