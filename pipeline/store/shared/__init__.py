"""The second tier of the store: a folder or a URL that machines share. docs/shared-store.md says what it guarantees."""
