"""What a step costs and how a window is cut so that it fits."""
