"""Convolutional encoders: Jasper, QuartzNet, ContextNet, Citrinet."""
