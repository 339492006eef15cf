"""Windows over images and volumes: convolutions, pools, resizing, patches."""
