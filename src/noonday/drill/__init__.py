"""``noonday drill``: does Noonday keep its promises while things break? Anybody can try it here."""
