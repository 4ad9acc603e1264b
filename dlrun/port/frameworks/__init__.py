"""What is particular to a framework: the steps of Keras, of tapes and sessions, of Estimators."""
