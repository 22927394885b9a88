import sys
from pathlib import Path

# The fakes are shared by several folders of tests and are no package of their own.
sys.path.insert(0, str(Path(__file__).parents[2]))
