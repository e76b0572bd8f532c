"""Names and checks of estimators, and the weight w(p) of each."""
