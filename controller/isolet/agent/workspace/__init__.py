"""What a sandbox is given to work with: its disk, and the folder with its launch script."""
