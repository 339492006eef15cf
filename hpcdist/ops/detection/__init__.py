"""Object detection: boxes, anchors, proposals, regions of interest, non-maximum suppression."""
