"""One function per thing a user can do; every door calls these."""
